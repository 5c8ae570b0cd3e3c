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


def test_the_supervisor_is_believed_before_triton() -> None:
    with answering({"/ready": 503}) as health, answering({"/v2/health/live": 200}) as triton:
        reason = why_unready({"HEALTH_PORT": health, "HTTP_PORT": triton})
    assert reason.endswith('/ready: 503 {"reason": "models are being loaded"}')


def test_ready_is_healthy() -> None:
    with answering({"/ready": 200}) as health:
        assert why_unready({"HEALTH_PORT": health, "HTTP_PORT": unused_port()}) == ""


@pytest.mark.threat("environment-proxy")
def test_no_proxy_of_the_environment_is_asked() -> None:
    """It is read when the command starts."""
    with answering({"/ready": 200}) as health:
        done = subprocess.run(
            [sys.executable, "-m", "hf_triton.serving.healthcheck"],
            env={"HEALTH_PORT": health, "http_proxy": f"http://127.0.0.1:{unused_port()}"},
            capture_output=True,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stdout) == (0, "")


def test_triton_is_asked_where_it_runs_alone() -> None:
    health = unused_port()
    with answering({"/v2/health/live": 200}) as triton:
        assert why_unready({"HEALTH_PORT": health, "HTTP_PORT": triton}) == ""
    with answering({"/v2/health/live": 400}) as triton:
        assert "400" in why_unready({"HEALTH_PORT": health, "HTTP_PORT": triton})


def test_the_command_ends_with_1_where_nothing_answers() -> None:
    health, triton = unused_port(), unused_port()
    done = subprocess.run(
        [sys.executable, "-m", "hf_triton.serving.healthcheck"],
        env={"HEALTH_PORT": health, "HTTP_PORT": triton},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stdout.startswith(f"neither port {health} nor {triton} answers")
