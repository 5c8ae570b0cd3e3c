"""The checks of a GPU, on the CPU with tiny models: all pass there, and a fault is found."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from hf_triton.cli import main as cli
from perf.lab import gpu

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(gpu, "LENGTHS", (3, 40, 530, 1, 513))
    monkeypatch.setattr(gpu, "NUM_TOKENS", 4)
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


def test_a_decoder_is_right_here_over_pages_of_nan_and_after_a_step_that_failed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert gpu.check(CPU, "llama")
    family, total = capsys.readouterr().out.splitlines()
    assert family.startswith("llama, eager: run by packed ")
    assert total == "1 of 1 are right"


def test_answers_that_differ_from_generates_are_bad(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own: Any = gpu.answers

    def another(engine: Any, asked: Any) -> list[list[int]]:
        found: list[list[int]] = own(engine, asked)
        return [*found[:-1], [(token + 1) % 509 for token in found[-1]]]

    monkeypatch.setattr(gpu, "answers", another)
    assert not gpu.check(CPU, "llama")
    assert "BAD llama, eager: run by packed answers [4, 9, 14] differ" in capsys.readouterr().out


def test_what_is_timed_stands_beside_a_limit(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.measure(CPU, "tiny")
    copied, plain, compiled = capsys.readouterr().out.splitlines()
    assert copied.startswith("a copy: ")
    assert plain.startswith("tiny, plain: 1 sequences ")
    assert "% of what reading allows; run by packed" in plain
    assert compiled.startswith("tiny, compiled: 1 sequences ")


@pytest.mark.parametrize(
    "command, only, told",
    [
        ("check", "(", "argument --only: got '(', not a valid regex: missing )"),
        ("check", "no such", "--only: it matches none of llama, mistral, gemma2"),
        ("time", "llama", "--only: it matches none of 135M, 7B, tiny"),
    ],
)
def test_a_wrong_choice_of_models_is_refused(
    command: str, only: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["perf", "gpu", command, "--device", "cpu", "--only", only])
    assert caught.value.code == 2
    assert told in capsys.readouterr().err
