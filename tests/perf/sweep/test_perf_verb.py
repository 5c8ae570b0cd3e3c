"""``hf-triton perf`` itself: its sub-verbs, and what is said where a package is missing."""

from __future__ import annotations

import importlib
from types import ModuleType

import pytest

from generator import cli, perf


@pytest.mark.parametrize("verb", perf.VERBS)
def test_every_sub_verb_has_help(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["perf", verb, "--help"])
    assert caught.value.code == 0
    assert importlib.import_module(f"generator.perf.{verb}").HELP
    assert capsys.readouterr().out


@pytest.mark.parametrize(
    "missing, told",
    [
        ("optuna", "needs the Python package optuna: pip install 'hf-triton[perf]'"),
        ("torch.nn", "needs the Python package torch: pip install 'hf-triton[serve]'"),
        ("perf", "the package `perf` is not beside `generator`; install hf-triton again"),
    ],
)
def test_a_missing_package_is_one_clear_line(
    missing: str, told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(_: object) -> int:
        raise ModuleNotFoundError(f"No module named '{missing}'", name=missing)

    module: ModuleType = importlib.import_module("generator.perf.sweep")
    monkeypatch.setattr(module, "run", run)
    assert cli.main(["perf", "sweep"]) == 1
    assert capsys.readouterr().err == f"hf-triton: {_prefix(told)}{told}\n"


def _prefix(told: str) -> str:
    return "hf-triton perf sweep" + (": " if told.startswith("the") else " ")
