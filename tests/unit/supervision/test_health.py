"""Answers to probes and to Prometheus."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from generator.errors import ServerError
from hf_triton.serving.supervision import health as served_over_http
from hf_triton.serving.supervision.health import Health, ModelReport, health_port
from hf_triton.tritonserver.listen import Listen
from tests.support.triton import eventually, free_ports, get


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@dataclass
class Told:
    health: Health
    clock: Clock
    url: str

    def status(self, path: str) -> int:
        return get(f"{self.url}{path}").status


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[Told]:
    """Hangs up on nobody who is slow because the machine is."""
    monkeypatch.setattr(served_over_http, "SLOWEST_CLIENT_S", 60.0)
    listen, clock = free_ports(), Clock()
    health = Health(clock)
    with health_port(listen, health):
        yield Told(health, clock, f"http://127.0.0.1:{listen.health_port}")


def serve(health: Health, **reasons: str) -> None:
    health.set_server_up(True)
    health.models = {name: ModelReport(reason) for name, reason in reasons.items()}
    health.enter("serving")


def test_ready_is_only_what_serves_every_model(told: Told) -> None:
    assert told.status("/ready") == 503
    serve(told.health, a="", b="")
    assert told.status("/ready") == 200
    serve(told.health, a="", b="its Python process died")
    answer = get(f"{told.url}/ready")
    assert answer.status == 503
    assert answer.body == {
        "ready": False,
        "phase": "serving",
        "not_ready": {"b": "its Python process died"},
    }
    serve(told.health, a="")
    assert told.status("/ready") == 200
    told.health.set_server_up(False)
    assert get(f"{told.url}/ready").body["reason"] == "tritonserver does not answer"
    told.health.set_server_up(True)
    told.health.why_no_ports = lambda: "the ports' process died"
    assert get(f"{told.url}/ready").body["reason"] == "the ports' process died"


def test_a_stop_is_not_ready_and_nothing_ends_that(told: Told) -> None:
    serve(told.health, a="")
    told.health.enter("stopping")
    told.health.enter("serving")
    assert get(f"{told.url}/ready").body["phase"] == "stopping"


def test_live_is_all_but_a_server_that_hangs(told: Told) -> None:
    assert told.status("/live") == 200
    serve(told.health, a="its Python process died")
    told.clock.now_s += 59
    told.health.set_server_up(False)
    assert told.status("/live") == 200
    told.clock.now_s += 1
    assert told.status("/live") == 503
    told.health.enter("restarting")
    told.clock.now_s += 100
    assert told.status("/live") == 200, "the supervisor is at it"
    told.health.enter("stopping")
    told.health.set_server_up(True)
    told.clock.now_s += 600
    assert told.status("/live") == 200, "it drains, or answers its last requests"


def test_every_metric_is_in_prometheus_text_format(told: Told) -> None:
    serve(told.health)
    told.health.models = {
        'na"me\\': ModelReport(),
        "b": ModelReport("is being loaded", 1, 1, True),
    }
    told.health.num_server_restarts = 1
    answer = get(f"{told.url}/metrics")
    samples = [line for line in answer.body.splitlines() if not line.startswith("#")]
    assert samples == [
        r'hf_triton_model_up{model="na\"me\\"} 1',
        'hf_triton_model_up{model="b"} 0',
        r'hf_triton_model_deaths_total{model="na\"me\\"} 0',
        'hf_triton_model_deaths_total{model="b"} 1',
        r'hf_triton_model_restarts_total{model="na\"me\\"} 0',
        'hf_triton_model_restarts_total{model="b"} 1',
        r'hf_triton_model_given_up{model="na\"me\\"} 0',
        'hf_triton_model_given_up{model="b"} 1',
        "hf_triton_server_up 1",
        "hf_triton_server_restarts_total 1",
    ]
    assert "# TYPE hf_triton_model_deaths_total counter\n" in answer.body


def raw(told: Told, request: bytes) -> bytes:
    """The answer's beginning; empty where the rest was not even read, and the connection broken."""
    port = int(told.url.rpartition(":")[2])
    with (
        socket.create_connection(("127.0.0.1", port), timeout=20) as client,
        contextlib.suppress(ConnectionError),
    ):
        client.sendall(request)
        return client.recv(100)
    return b""


def test_other_paths_and_other_requests_are_refused(told: Told) -> None:
    assert told.status("/") == 404
    assert told.status("/ready/../live") == 404
    assert told.status("/live?verbose=1") == 200
    assert raw(told, b"GET /live HTTP/1.1\r\n\r\n").split()[1] == b"200"
    for request in (b"POST /live HTTP/1.1\r\n\r\n", b"nonsense\r\n\r\n", b"GET " + b"x" * 99999):
        assert b"200" not in raw(told, request)
    assert told.status("/live") == 200


@pytest.mark.threat("health-port")
def test_of_too_many_connections_the_oldest_is_closed(told: Told) -> None:
    port = int(told.url.rpartition(":")[2])
    idle = [socket.create_connection(("127.0.0.1", port), timeout=20) for _ in range(100)]
    try:
        assert told.status("/live") == 200
        assert idle[0].recv(1) == b""
        idle[-1].settimeout(0)
        with pytest.raises(BlockingIOError):
            idle[-1].recv(1)
    finally:
        for client in idle:
            client.close()


@pytest.mark.threat("health-port")
def test_a_client_that_drips_is_hung_up_on(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served_over_http, "SLOWEST_CLIENT_S", 0.5)
    port = int(told.url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=0.1) as client:

        def is_hung_up_on() -> bool:
            client.sendall(b"x")
            with contextlib.suppress(TimeoutError):
                return client.recv(1) == b""
            return False

        with contextlib.suppress(ConnectionError):  # it may be reset
            assert eventually(is_hung_up_on, 20)


def test_a_port_that_is_taken_is_named_with_its_flag() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = Listen("127.0.0.1", health_port=taken.getsockname()[1])
        with pytest.raises(ServerError, match="with --health-port"), health_port(listen, Health()):
            pass
