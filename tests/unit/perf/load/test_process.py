"""The load generator as a process of its own, against a small server."""

from __future__ import annotations

import socket
from http.server import BaseHTTPRequestHandler

import pytest

from perf.load.levels import LevelArguments
from perf.load.measure import Policy
from perf.load.process import LevelError, generator, http_command, records_of
from perf.load.targets import ANY_INFER
from tests.support.http_server import Handler, serving_http

ANSWER = b'{"outputs": [{"name": "num_output_tokens", "data": [4]}]}'
SIX = Policy(min_requests=6, min_s=0, max_s=60)


class Server(Handler, BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(200 if self.path == "/v2/models/demo/infer" else 404, ANSWER)


def test_one_process_runs_one_level_after_the_other() -> None:
    counts: list[int] = []
    with serving_http(Server) as port, generator(http_command(ANY_INFER, port, "demo")) as running:
        first = running.records_of(LevelArguments(2, 0, SIX, bodies=["{}"]), counts.append)
        second = running.records_of(LevelArguments(1, 0, SIX))
    for records in (first, second):
        assert {(record.num_output_tokens, record.problem) for record in records} == {(4, None)}
        assert len(records) in (6, 7)
    assert counts == list(range(1, len(first) + 1))


def test_a_lost_server_is_told_in_one_line() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # so that nobody else listens there
        with pytest.raises(
            LevelError, match=r"^the load generator lost the server: .* call failed"
        ):
            records_of(http_command(ANY_INFER, taken.getsockname()[1]), LevelArguments(1, 0, SIX))
