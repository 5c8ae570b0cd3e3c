"""The load generator against a small server, and what its records come to."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from perf.load.http import Target
from perf.load.levels import LevelArguments
from perf.load.measure import Policy, Record
from perf.load.process import http_command, records_of
from perf.load.targets import ANY_INFER, ANY_STREAM
from perf.report.schema import Load
from perf.tune.bench.served import summarize

LOAD = Load("demo", "http-infer", concurrency=2)


class Server(BaseHTTPRequestHandler):
    """Answers 4 tokens, whole or at /generate_stream in two pieces; refuses what says so."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        if "refuse" in body:
            self._whole(503, {"error": "the queue is full"})
        elif self.path.endswith("/infer"):
            self._whole(200, {"outputs": [{"name": "num_output_tokens", "data": [4]}]})
        else:
            self._pieces()

    def _whole(self, status: int, answer: object) -> None:
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _pieces(self) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for tokens in (1, 3):
            event = f'data: {{"text_output": "x", "num_output_tokens": {tokens}}}\n\n'.encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def sent(target: Target, port: int, *bodies: str) -> list[Record]:
    level = LevelArguments(2, 0, Policy(6, 0.0, 300.0), bodies=bodies)
    return records_of(http_command(target, port, "demo"), level)


def test_whole_answers_and_refusals_are_counted_apart() -> None:
    with serving() as port:
        records = sent(ANY_INFER, port, "{}", "refuse")
    measured = summarize(records, LOAD, 0, "")
    assert len(records) >= 6
    assert measured.num_errors == sum(record.problem is not None for record in records) > 0
    assert measured.first_error == 'HTTP 503: {"error": "the queue is full"}'
    assert measured.time_to_first_token is None


def test_a_streams_tokens_are_those_of_all_its_pieces() -> None:
    with serving() as port:
        records = sent(ANY_STREAM, port, "{}")
    assert {record.num_output_tokens for record in records} == {4}
    assert {len(record.chunk_s) for record in records} == {2}
    assert summarize(records, LOAD, 0, "").time_to_first_token is not None


def test_time_between_tokens_is_a_streams_time_after_its_first_piece() -> None:
    record = Record(0, 0.0, 1.0, 0, num_output_tokens=5, chunk_s=(0.2, 0.6, 1.0))
    measured = summarize([record], LOAD, 0, "")
    assert measured.inter_token_latency is not None
    assert measured.inter_token_latency.p50_ms == pytest.approx(200.0)
    assert measured.time_to_first_token is not None
    assert measured.time_to_first_token.p50_ms == pytest.approx(200.0)


def test_nothing_sent_is_a_measurement_without_figures() -> None:
    measured = summarize([], LOAD, 0, "")
    assert measured.latency is None
    assert measured.requests_per_s == 0.0
