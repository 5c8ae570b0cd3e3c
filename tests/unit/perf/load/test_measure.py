"""What is counted, and how it is summed up."""

from __future__ import annotations

import math

import pytest

from perf.load.figures import measurement_of
from perf.load.measure import Policy, Record, percentile
from perf.report.schema import Load, Measurement


def closed_loop_records(clients: int, num_requests: int, latency_s: float) -> list[Record]:
    """Callers that each answer in the same time, 10 useful tokens a request."""
    return [
        Record(
            i,
            sent_s=(i // clients) * latency_s,
            done_s=(i // clients + 1) * latency_s,
            max_tokens=10,
        )
        for i in range(num_requests)
    ]


def summarize(records: list[Record], clients: int) -> Measurement:
    return measurement_of(records, Load("", "", clients), 0, "")


@pytest.mark.parametrize("share,expected", [(0.5, 5), (0.9, 9), (0.99, 10), (0.0, 1), (1.0, 10)])
def test_percentile_is_the_nearest_rank(share: float, expected: int) -> None:
    assert percentile([10, 9, 8, 7, 6, 5, 4, 3, 2, 1], share) == expected


def test_percentile_of_nothing_is_not_a_number() -> None:
    assert math.isnan(percentile([], 0.5))


@pytest.mark.parametrize("clients", [1, 4, 16])
def test_a_steady_loop_gives_its_rate_whatever_the_clients(clients: int) -> None:
    level = summarize(closed_loop_records(clients, 10 * clients, latency_s=2.0), clients)
    assert level.output_tokens_per_s == pytest.approx(clients * 10 / 2.0)
    assert level.latency
    assert (level.latency.p50_ms, level.latency.p99_ms) == (2000, 2000)


def test_a_slow_start_and_the_emptying_loop_are_not_counted() -> None:
    steady = closed_loop_records(4, 40, latency_s=1.0)
    slow_start = [Record(i, -9.0, 0.0, 10) for i in range(4)]
    last_one_straggles = [Record(99, 9.0, 50.0, 10)]
    level = summarize([*slow_start, *steady, *last_one_straggles], clients=4)
    assert level.output_tokens_per_s == pytest.approx(40.0)


def test_a_run_too_short_to_be_steady_is_counted_whole() -> None:
    level = summarize(closed_loop_records(4, 4, latency_s=2.0), clients=4)
    assert (level.num_requests, level.duration_s) == (4, 2.0)


def test_bad_answers_are_not_useful_and_are_told() -> None:
    records = closed_loop_records(1, 10, latency_s=1.0)
    records[4] = Record(4, 4.0, 5.0, 10, 3, problem="got 3 output tokens, expected 10")
    level = summarize(records, clients=1)
    assert level.num_requests == 7
    assert level.output_tokens_per_s == pytest.approx(70 / level.duration_s)
    assert (level.num_errors, level.first_error) == (1, "got 3 output tokens, expected 10")


def test_a_level_with_no_answers_has_no_rate() -> None:
    level = summarize([], clients=8)
    assert (level.requests_per_s, level.output_tokens_per_s) == (0.0, None)


@pytest.mark.parametrize(
    "num_sent,elapsed_s,expected",
    [(10, 1.0, False), (10, 5.0, True), (9, 5.0, False), (0, 30.0, True)],
)
def test_a_level_ends_with_requests_and_seconds_reached_or_time_over(
    num_sent: int, elapsed_s: float, expected: bool
) -> None:
    policy = Policy(min_requests=10, min_s=5.0, max_s=30.0)
    assert policy.enough(num_sent, elapsed_s) is expected
