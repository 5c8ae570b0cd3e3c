"""The images' health check, against servers that answer as ours do."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler

import pytest

from hf_triton.serving import healthcheck
from hf_triton.serving.healthcheck import why_unready
from tests.support.http_server import Handler, serving_http
from tests.support.triton import free_ports


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(healthcheck, "TIMEOUT_S", 60.0)


@contextlib.contextmanager
def answering(statuses: Mapping[str, int]) -> Iterator[str]:
    """A server that answers these paths; its port."""

    class Paths(Handler, BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer(statuses.get(self.path, 404), b'{"reason": "models are being loaded"}')

    with serving_http(Paths) as port:
        yield str(port)


def unused_port() -> str:
    """One that ``answering`` does not get either."""
    return str(free_ports().http_port)


def test_a_server_that_is_not_ready_says_why() -> None:
    with answering({"/ready": 503}) as health:
        assert why_unready(health).endswith('/ready: 503 {"reason": "models are being loaded"}')


def test_ready_is_healthy() -> None:
    with answering({"/ready": 200}) as health:
        assert why_unready(health) == ""


@pytest.mark.threat("environment-proxy")
def test_the_command_asks_no_proxy_and_ends_with_1_where_nothing_answers() -> None:
    """The environment's proxy is read when the command starts."""

    def ended(port: str) -> int:
        return subprocess.run(
            [sys.executable, "-m", "hf_triton.serving.healthcheck"],
            env={"HEALTH_PORT": port, "http_proxy": f"http://127.0.0.1:{proxy}"},
            capture_output=True,
            check=False,
        ).returncode

    proxy = unused_port()
    with answering({"/ready": 200}) as health:
        assert ended(health) == 0
    assert ended(proxy) == 1
