"""The load generator: its requests, what it reads of answers, and its figures."""

from __future__ import annotations

import json
import socket
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler
from itertools import islice

import pytest

from perf.load.level import ROUTES, AnswerError, Arrivals, Level, LevelError, Sent, records_of
from perf.load.records import Policy, Record, measurement_of
from perf.load.requests import OUTPUT_LENGTHS, requests
from perf.report.schema import Load
from tests.support.http_server import Handler, serving_http

ANSWER = b'{"outputs": [{"name": "num_output_tokens", "data": [4]}]}'
SIX = Policy(min_requests=6, min_s=0, max_s=60)
ASKED, ANY = Sent("{}", max_tokens=3), Sent("{}")


class Server(Handler, BaseHTTPRequestHandler):
    """Answers ``/infer`` at once, and a stream's two events with a moment between them."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        if not self.path.endswith("generate_stream"):
            self.answer(200 if self.path == "/v2/models/demo/infer" else 404, ANSWER)
            return
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for part in (b'data: {"num_output_tokens": 1}\n', b'\ndata: {"num_output_tokens": 1}\n\n'):
            self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
            self.wfile.flush()
            time.sleep(0.05)
        self.wfile.write(b"0\r\n\r\n")


def test_a_level_ends_with_every_answer_counted() -> None:
    with serving_http(Server) as port:
        found = records_of("infer", port, "demo", Level(2, SIX, [ANY]))
        lost = records_of("infer", port, "other", Level(1, SIX, [ANY]))
        streams = records_of("stream", port, "demo", Level(1, SIX, [ANY]))
    assert {(record.num_output_tokens, record.problem) for record in found} == {(4, None)}
    assert len(found) in (6, 7)
    assert {str(record.problem)[:8] for record in lost} == {"HTTP 404"}
    assert {(record.num_output_tokens, len(record.chunk_s)) for record in streams} == {(2, 2)}
    assert all(record.sent_s < record.chunk_s[0] <= record.done_s for record in streams)


def test_a_lost_server_is_told_in_one_line() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # so that nobody else listens there
        with pytest.raises(LevelError, match=r"^the load generator lost the server: "):
            records_of("infer", taken.getsockname()[1], "demo", Level(1, SIX, [ANY]))


def test_the_mixed_load_is_the_same_for_a_seed_and_has_all_lengths_alike() -> None:
    first, again, other = (list(islice(requests(seed), 50)) for seed in (0, 0, 1))
    assert first == again != other
    assert Counter(max_tokens for _, max_tokens in first) == dict.fromkeys(OUTPUT_LENGTHS, 10)
    assert all(8 <= len(prompt.split()) <= 64 for prompt, _ in first)


Response = tuple[int, Arrivals]


def answer(document: object) -> Response:
    return 200, [(1.0, json.dumps(document).encode())]


def stream(*events: object) -> Response:
    """Event number n ends at second n; the bytes come in two pieces each."""
    whole = [f"data: {json.dumps(each)}\n\n" for each in events]
    arrivals = [(n - 0.5, text[:9].encode()) for n, text in enumerate(whole)]
    arrivals += [(float(n), text[9:].encode()) for n, text in enumerate(whole)]
    return 200, sorted(arrivals)


COMPLETION = {"choices": [{"text": "ba ba ba"}], "usage": {"completion_tokens": 3}}
OUTPUTS = [
    {"name": "text_output", "data": ["ba ba ba"]},
    {"name": "num_output_tokens", "data": [3]},
]


@pytest.mark.parametrize(
    "name, sent, response, tokens, times",
    [
        ("infer", ANY, answer({"outputs": []}), 0, ()),
        ("infer", ASKED, answer({"outputs": OUTPUTS}), 3, ()),
        ("stream", ANY, stream({"num_output_tokens": [1, 1]}, {"num_output_tokens": 1}), 3, (0, 1)),
        ("stream", ASKED, stream({"text_output": "ba ba "}, {"text_output": "ba"}), 3, (0, 1)),
        ("completions", ASKED, answer(COMPLETION), 3, ()),
    ],
)
def test_right_answers_are_counted(
    name: str, sent: Sent, response: Response, tokens: int, times: tuple[float, ...]
) -> None:
    found, chunk_s = ROUTES[name].read(sent, *response)
    assert (found, tuple(chunk_s)) == (tokens, times)


@pytest.mark.parametrize(
    "name, response, told",
    [
        ("stream", stream({"text_output": "ba"}), "got 1 output tokens, expected 3"),
        ("stream", stream({"error": "the queue is full"}), "the queue is full"),
        ("completions", answer({"choices": [{"text": "ba"}]}), "got 1 output tokens, expected 3"),
        ("completions", (503, [(0.0, b"full")]), "HTTP 503: full"),
    ],
)
def test_wrong_answers_are_errors(name: str, response: Response, told: str) -> None:
    with pytest.raises(AnswerError, match=told):
        ROUTES[name].read(ASKED, *response)


LOAD = Load("m", "http-infer", concurrency=2)


def test_only_the_time_in_which_all_callers_are_busy_is_counted() -> None:
    records = [Record(at, at + 2.0, 10) for at in (0.0, 0.0, 2.0, 2.0, 4.0, 4.0, 6.0, 6.0)]
    found = measurement_of(records, LOAD, 0, "")
    assert (found.num_requests, found.duration_s) == (4, 4.0)  # those that end at 4 and 6
    assert found.output_tokens_per_s == 10
    assert found.latency is not None
    assert found.latency.p99_ms == 2000


def test_answers_with_a_problem_are_errors_and_no_requests() -> None:
    records = [Record(0.0, 1.0, 10), Record(0.0, 1.0, 10, problem="HTTP 503: full")]
    found = measurement_of(records, LOAD, 0, "")
    assert (found.num_requests, found.num_errors, found.first_error) == (1, 1, "HTTP 503: full")


@pytest.mark.parametrize(
    "sent, seconds, enough", [(5, 9, False), (6, 0.5, False), (6, 1, True), (0, 60, True)]
)
def test_a_level_wants_requests_and_seconds_or_its_limit(
    sent: int, seconds: float, enough: bool
) -> None:
    assert Policy(min_requests=6, min_s=1, max_s=60).enough(sent, seconds) is enough
