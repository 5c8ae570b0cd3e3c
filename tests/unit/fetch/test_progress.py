"""Bars on a terminal, quiet lines anywhere else."""

from __future__ import annotations

import sys

import pytest

from generator.fetch import progress as fetch_progress
from generator.fetch.progress import Progress, size


def test_a_terminal_gets_a_bar_for_each_model(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    progress = Progress()
    progress.begin("a", 1000, 250)
    progress.begin("b", 10, 10)
    progress.say("c: done")
    progress.end_all()
    said = capsys.readouterr().err
    for part in ("a:  25%|", "b: 100%|", "250/1.00k", "c: done\n"):
        assert part in said


def test_a_log_gets_a_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Progress().begin("a", 1000, 500)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(fetch_progress, "LINE_EVERY_S", 0.0)
    progress = Progress()
    progress.begin("a", 1000, 500)
    progress.add("a", 100)
    assert capsys.readouterr().err.endswith("a: 600 of 1.00k\n")


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
