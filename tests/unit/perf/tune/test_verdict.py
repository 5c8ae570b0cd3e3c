"""Bounds, the repeats of the winner and the current settings, and what is said of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from perf.report.schema import Measurement, append, write_run
from perf.tune.question import Goal, Request
from perf.tune.search import Search, compared
from perf.tune.space import Space
from tests.unit.perf.tune.fake_bench import RUN, SEQS, FakeBench, measurement

THROUGHPUT = Goal("throughput")
CURRENT, WINNER = {SEQS: 4}, {SEQS: 32}


def several(settings: dict[str, int], *tokens: float, p99_ms: float = 10.0) -> list[Measurement]:
    return [measurement(settings, each, p99_ms) for each in tokens]


def make(folder: Path, goal: Goal, *trials: Measurement) -> Search:
    """A search with these trials, of two turns."""
    write_run(folder, RUN)
    for each in trials:
        append(folder, each)
    request = Request("demo", folder, folder, goal, 8, repeats=2, trials=9, seconds=1.0)
    return Search(Space({}, CURRENT), request, FakeBench(), folder)


@pytest.mark.parametrize(
    "goal, tokens, p99, ttft, met",
    [
        (Goal("throughput", max_p99_ms=100), 1, 100.0, None, True),
        (Goal("throughput", max_p99_ms=100), 1, 101.0, None, False),
        (Goal("throughput", max_ttft_ms=100), 1, 900.0, 100.0, True),
        (Goal("throughput", max_ttft_ms=100), 1, 900.0, None, False),
    ],
)
def test_a_bound_is_met_up_to_itself(
    goal: Goal, tokens: float, p99: float, ttft: float | None, met: bool
) -> None:
    assert goal.is_met(measurement({}, tokens, p99, ttft)) is met


def test_settings_that_refuse_requests_meet_no_bounds() -> None:
    assert not THROUGHPUT.is_met(measurement({}, 100, 10.0, error="HTTP 503: the queue is full"))


def test_whatever_meets_the_bounds_ranks_before_what_does_not(tmp_path: Path) -> None:
    figures = enumerate([(900, 300), (5, 110), (9, 400), (1, 90)])
    trials = [measurement({SEQS: number}, *each) for number, each in figures]
    search = make(tmp_path, Goal("throughput", max_p99_ms=100), *trials)
    assert [each.load.settings[SEQS] for each in search.ranked()] == [3, 1, 0, 2]


def test_both_are_measured_in_turns_and_never_twice(tmp_path: Path) -> None:
    current, winner = measurement(CURRENT, 40, 10.0), measurement(WINNER, 320, 10.0)
    once_more = measurement(CURRENT, 41, 10.0, repeat=1)
    search = make(tmp_path, THROUGHPUT, current, winner, once_more)
    again = search.in_turns(winner.load, current.load)
    assert search.bench.served == [WINNER, CURRENT, WINNER]
    assert [*map(len, again)] == [2, 2]


@pytest.mark.parametrize(
    "winner, verdict",
    [((110, 99, 115), "noise"), ((190, 200, 210), "better"), ((50, 49, 51), "worse"), ((190,), "")],
)
def test_a_winner_is_better_where_its_repeats_scatter_less(
    winner: tuple[float, ...], verdict: str
) -> None:
    found = compared(several(WINNER, *winner), several(CURRENT, 100, 104, 96), THROUGHPUT)
    assert found is not None
    assert found.verdict == verdict
