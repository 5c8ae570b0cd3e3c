"""Bars on a terminal, quiet lines anywhere else."""

from __future__ import annotations

import sys

import pytest

from generator.fetch import progress as fetch_progress
from generator.fetch.progress import Progress, size


def progress_on_terminal(monkeypatch: pytest.MonkeyPatch) -> Progress:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "100")
    return Progress()


def test_a_terminal_gets_a_bar_for_each_model_drawn_in_place(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    progress = progress_on_terminal(monkeypatch)
    progress.begin("a", 1000)
    progress.begin("b", 10, 10)
    progress.add("a", 250)
    progress.draw()
    bars = "a  [####............]  25%  250 B of 1.0 kB\nb  [################] 100%  10 B of 10 B\n"
    assert capsys.readouterr().err == bars
    progress.end("b")
    progress.say("b: done")
    progress.draw()
    assert capsys.readouterr().err.startswith("\033[2F\033[Jb: done\na  [####")


def test_a_log_gets_a_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    progress = Progress()
    progress.begin("a", 1000, 500)
    progress.draw()
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(fetch_progress, "_LINE_EVERY_S", 0.0)
    progress = Progress()
    progress.begin("a", 1000, 500)
    progress.draw()
    assert capsys.readouterr().err == "a: 500 B of 1.0 kB\n"


@pytest.mark.parametrize(
    "num_bytes, shown",
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (14_500_000_000, "14.5 GB"),
        (10**13, "10.0 TB"),
    ],
)
def test_sizes_are_those_of_the_hub(num_bytes: int, shown: str) -> None:
    assert size(num_bytes) == shown
