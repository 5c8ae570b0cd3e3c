"""Waiting times of streamed answers, and what the load generator itself takes."""

from __future__ import annotations

import pytest

from perf.load.measure import Record, client_cores, streaming


def record(number: int, *, first_s: float, between_s: float, problem: str | None = None) -> Record:
    """Sent at second ``10 * number``; 4 chunks with 8 tokens in all; a tenth of a core is used."""
    sent_s = 10.0 * number
    chunk_s = [sent_s + first_s + i * between_s for i in range(4)]
    done_s = sent_s + 10.0
    return Record(number, sent_s, done_s, 8, 8, problem, chunk_s, process_cpu_s=done_s / 10)


def test_first_chunk_and_between_chunks_in_seconds() -> None:
    records = [record(i, first_s=0.1 * (i + 1), between_s=0.02) for i in range(10)]
    found = streaming(records, clients=1)
    assert found is not None
    assert (found.num_answers, found.num_chunks, found.tokens_per_chunk) == (8, 32, 2.0)
    assert (found.first_p50_s, found.first_p99_s) == pytest.approx((0.5, 0.9))
    assert (found.between_p50_s, found.between_p99_s) == pytest.approx((0.02, 0.02))


def test_bad_answers_have_no_waiting_times() -> None:
    records = [record(i, first_s=0.1, between_s=0.02) for i in range(5)]
    records.append(record(5, first_s=9.0, between_s=0.02, problem="cut off"))
    found = streaming([*records, *(record(i, first_s=0.1, between_s=0.02) for i in (6, 7))], 1)
    assert found is not None
    assert found.first_p99_s == pytest.approx(0.1)


def test_what_is_not_streamed_has_none() -> None:
    assert streaming([Record(i, float(i), i + 1.0, 8, 8) for i in range(9)], clients=1) is None


def test_the_load_generators_cores_are_its_cpu_time_by_the_clock() -> None:
    records = [record(i, first_s=0.1, between_s=0.02) for i in range(10)]
    assert client_cores(records, clients=1) == pytest.approx(0.1)
    assert client_cores(records[:1], clients=1) == 0.0
