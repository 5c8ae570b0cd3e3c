from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hf_triton.cli import main as cli
from tests.support.own_tasks import use_tasks
from tests.unit.generator.workspace import make_templates

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, empty, where only the fake task is known."""
    folder = make_templates(tmp_path / "templates")
    use_tasks(folder, monkeypatch.setattr)
    home = tmp_path / "work"
    home.mkdir()
    monkeypatch.chdir(home)
    return home


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the command line; returns its exit code, stdout and stderr."""

    def run_verb(*arguments: str) -> tuple[int, str, str]:
        code = cli.main(arguments)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run_verb
