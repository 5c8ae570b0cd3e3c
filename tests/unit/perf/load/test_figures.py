"""What the records of a trial come to, and what any model's answers say of tokens."""

from __future__ import annotations

import json

import pytest

from perf.load.figures import measurement_of
from perf.load.measure import Record
from perf.load.requests import Request
from perf.load.targets import ANY_INFER, ANY_STREAM
from perf.report.schema import Load
from tests.unit.perf.load.test_http import received, stream

LOAD = Load("demo", "http-infer", concurrency=2)
REQUEST = Request(index=0, prompt="{}", num_prompt_tokens=0, max_tokens=0)


def test_answers_and_refusals_are_counted_apart() -> None:
    refused = 'HTTP 503: {"error": "the queue is full"}'
    records = [Record(n, n, n + 1.0, 0, 4, problem=refused if n % 2 else None) for n in range(6)]
    measured = measurement_of(records, LOAD, 0, "")
    assert (measured.num_errors, measured.first_error) == (3, refused)
    assert measured.output_tokens_per_s == pytest.approx(4 * measured.requests_per_s)
    assert measured.time_to_first_token is None


def test_a_streams_tokens_are_those_of_all_its_pieces() -> None:
    pieces = (f'{{"text_output": "x", "num_output_tokens": {tokens}}}' for tokens in (1, 3))
    answer = ANY_STREAM.read(REQUEST, received(stream(*pieces)))
    assert (answer.num_output_tokens, len(answer.chunk_s)) == (4, 2)


def test_a_whole_answers_tokens_are_those_that_it_reports() -> None:
    body = json.dumps({"outputs": [{"name": "num_output_tokens", "data": [4]}]}).encode()
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    assert ANY_INFER.read(REQUEST, received(head + body)).num_output_tokens == 4


def test_time_between_tokens_is_a_streams_time_after_its_first_piece() -> None:
    record = Record(0, 0.0, 1.0, 0, num_output_tokens=5, chunk_s=(0.2, 0.6, 1.0))
    measured = measurement_of([record], LOAD, 0, "")
    assert measured.inter_token_latency is not None
    assert measured.inter_token_latency.p50_ms == pytest.approx(200.0)
    assert measured.time_to_first_token is not None
    assert measured.time_to_first_token.p50_ms == pytest.approx(200.0)


def test_nothing_sent_is_a_measurement_without_figures() -> None:
    measured = measurement_of([], LOAD, 0, "")
    assert measured.latency is None
    assert measured.requests_per_s == 0.0
