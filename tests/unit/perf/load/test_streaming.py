"""Waiting times of streamed answers, and what the load generator itself takes."""

from __future__ import annotations

import pytest

from perf.load.figures import between_chunks, measurement_of
from perf.load.measure import Record, client_cores
from perf.report.schema import Load


def record(number: int, *, first_s: float, between_s: float, problem: str | None = None) -> Record:
    """Sent at second ``10 * number``; 4 chunks with 8 tokens in all; a tenth of a core is used."""
    sent_s = 10.0 * number
    chunk_s = [sent_s + first_s + i * between_s for i in range(4)]
    done_s = sent_s + 10.0
    return Record(number, sent_s, done_s, 8, 8, problem, chunk_s, process_cpu_s=done_s / 10)


def waits_of(records: list[Record]) -> tuple[float | None, float | None]:
    """Medians until the first chunk and between chunks, in ms."""
    found = measurement_of(records, Load("", "", 1), 0, "", waits=between_chunks)
    times = (found.time_to_first_token, found.inter_token_latency)
    first, between = (each.p50_ms if each else None for each in times)
    return first, between


def test_first_chunk_and_between_chunks() -> None:
    records = [record(i, first_s=0.1 * (i + 1), between_s=0.02) for i in range(10)]
    assert waits_of(records) == pytest.approx((500, 20))


def test_bad_answers_have_no_waiting_times() -> None:
    bad = [record(i, first_s=9.0, between_s=0.5, problem="cut off") for i in range(1, 7)]
    records = [record(0, first_s=0.1, between_s=0.02), *bad]
    records += [record(i, first_s=0.1, between_s=0.02) for i in (7, 8)]
    assert waits_of(records) == pytest.approx((100, 20))


def test_what_is_not_streamed_has_none() -> None:
    assert waits_of([Record(i, float(i), i + 1.0, 8, 8) for i in range(9)]) == (None, None)


def test_the_load_generators_cores_are_its_cpu_time_by_the_clock() -> None:
    records = [record(i, first_s=0.1, between_s=0.02) for i in range(10)]
    assert client_cores(records, clients=1) == pytest.approx(0.1)
    assert client_cores(records[:1], clients=1) == 0.0
