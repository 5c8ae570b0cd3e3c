"""Bounds, the repeats of the winner and the current settings, and what is said of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from perf.report.schema import Measurement, append, write_run
from perf.tune.question import Goal, Request
from perf.tune.search import Outcome, compared, in_turns, measured
from tests.unit.perf.tune.fake_bench import RUN, SEQS, FakeBench, measurement

THROUGHPUT = Goal("throughput")
CURRENT, WINNER = {SEQS: 4}, {SEQS: 32}


def several(settings: dict[str, int], *tokens: float, p99_ms: float = 10.0) -> list[Measurement]:
    return [measurement(settings, each, p99_ms) for each in tokens]


def outcome(number: int, settings: dict[str, int], tokens: float, p99: float = 10.0) -> Outcome:
    return Outcome(number, measurement(settings, tokens, p99))


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


def test_whatever_meets_the_bounds_ranks_before_what_does_not() -> None:
    goal = Goal("throughput", max_p99_ms=100)
    fast, near, far = outcome(0, {}, 900, 300), outcome(1, {}, 5, 110), outcome(2, {}, 9, 400)
    slow = outcome(3, {}, 1, 90)
    order = [each.number for each in measured([fast, near, far, slow], goal)]
    assert order == [3, 1, 0, 2]


def test_both_are_measured_in_turns_and_never_twice(tmp_path: Path) -> None:
    current, winner = outcome(0, CURRENT, 40), outcome(3, WINNER, 320)
    write_run(tmp_path, RUN)
    for each in (current, winner):
        append(tmp_path, each.measurement)
    append(tmp_path, measurement(CURRENT, 41, 10.0, repeat=1))
    bench = FakeBench(folder=tmp_path)
    request = Request("demo", tmp_path, tmp_path, THROUGHPUT, 8, repeats=2, trials=9, seconds=1.0)
    again = in_turns(bench, tmp_path, winner, current, request)
    assert bench.served == [WINNER, CURRENT, WINNER]
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
