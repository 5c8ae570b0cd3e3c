"""The state of a server and its models for probes and for Prometheus: ``/live``,
``/ready`` and ``/metrics`` of the health port.

Written by the supervisor, read by the port's thread. A connection is for one request. Clients can't
keep others out: of more than 64 connections the oldest is closed, and each after 5 s.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Literal

from hf_triton.ports.time_limit import timeout
from hf_triton.tritonserver.http_api import Sample
from hf_triton.tritonserver.listen import Listen, listening_socket

Phase = Literal["starting", "serving", "restarting", "stopping"]

_PHASE_REASONS: Mapping[Phase, str] = {
    "starting": "models are being loaded",
    "restarting": "tritonserver died and is being restarted",
    "stopping": "the server is being stopped",
}
# A server that should run and gives no answer for so long hangs: longer than the supervisor waits
# before it ends one.
_HUNG_AFTER_S = 60.0
SLOWEST_CLIENT_S = 5.0
_MOST_CONNECTIONS = 64
_TEXT = "text/plain; version=0.0.4; charset=utf-8"
_JSON = "application/json"
_HEAD = (
    "HTTP/1.1 {0.value} {0.phrase}\r\nContent-Type: {1}\r\nContent-Length: {2}\r\n"
    "Cache-Control: no-store\r\nConnection: close\r\n\r\n"
)
METRICS = {
    "hf_triton_model_up": ("gauge", "1 if the model is ready and all its processes live."),
    "hf_triton_model_deaths_total": ("counter", "Processes of the model that died."),
    "hf_triton_model_restarts_total": ("counter", "Times the model was loaded after a death."),
    "hf_triton_model_given_up": ("gauge", "1 if the model failed to load too often to be retried."),
    "hf_triton_model_loaded": ("gauge", "1 if an on-demand model is in memory."),
    "hf_triton_model_loads_total": ("counter", "Times the model was loaded on demand."),
    "hf_triton_model_put_out_total": ("counter", "Times the model was evicted, by reason."),
    "hf_triton_model_waiting_requests": ("gauge", "Requests that wait until the model is loaded."),
    "hf_triton_model_load_wait_seconds_total": (
        "counter",
        "Time that the request which started a load waited for it.",
    ),
    "hf_triton_on_demand_memory_bytes": (
        "gauge",
        "Memory of an on-demand model, now or when it ran last, by device.",
    ),
    "hf_triton_on_demand_memory_limit_bytes": (
        "gauge",
        "Memory limit of all on-demand models together, by device.",
    ),
    "hf_triton_server_up": ("gauge", "1 if tritonserver runs and answers."),
    "hf_triton_server_restarts_total": ("counter", "Times tritonserver was restarted."),
}


@dataclass(frozen=True)
class ModelReport:
    """One model of models.yaml; ``reason`` is why it is not ready, "" where it is."""

    reason: str = ""
    num_deaths: int = 0
    num_restarts: int = 0
    is_given_up: bool = False


@dataclass
class Health:
    """The state of one server. Its supervisor assigns what it knows; the port's thread reads."""

    clock: Callable[[], float] = time.monotonic
    phase: Phase = "starting"
    models: Mapping[str, ModelReport] = field(default_factory=dict)
    on_demand: Mapping[str, str] = field(default_factory=dict)
    on_demand_samples: Sequence[Sample] = ()
    why_no_ports: Callable[[], str] = str  # "" where the ports' process listens
    num_server_restarts: int = 0
    _phase_reason: str = _PHASE_REASONS["starting"]
    _is_server_up: bool = False
    _answered_at_s: float | None = None

    def enter(self, phase: Phase, reason: str = "") -> None:
        """Sets the phase of the server's life, and why it is not ready then where there is more to
        say than usual. There is no phase after stopping.
        """
        if self.phase != "stopping":
            self.phase, self._phase_reason = phase, reason or _PHASE_REASONS.get(phase, "")
        if phase == "restarting":
            self._answered_at_s = None

    def set_server_up(self, is_up: bool) -> None:
        """Notes whether tritonserver has answered just now."""
        self._is_server_up = is_up
        if is_up or self._answered_at_s is None:
            self._answered_at_s = self.clock()

    def given_up(self) -> list[str]:
        """The models that nobody tries to load again."""
        return [name for name, model in self.models.items() if model.is_given_up]

    def is_live(self) -> bool:
        """False where tritonserver should answer and has not for a minute: it hangs."""
        since = None if self.phase == "stopping" else self._answered_at_s
        return since is None or self.clock() - since < _HUNG_AFTER_S

    def readiness(self) -> dict[str, Any]:
        """The body of ``/ready``."""
        not_ready = {name: model.reason for name, model in self.models.items() if model.reason}
        silent = "" if self._is_server_up else "tritonserver does not answer"
        reason = self._phase_reason or silent or self.why_no_ports()
        found: dict[str, Any] = {"ready": not (reason or not_ready), "phase": self.phase}
        if reason:
            found["reason"] = reason
        found["not_ready"] = not_ready
        return {**found, "on_demand": self.on_demand} if self.on_demand else found

    def metrics_text(self) -> str:
        """Everything in Prometheus' text format, version 0.0.4."""
        by_metric = defaultdict[str, list[str]](list)
        for name, labels, value in (*self._samples(), *self.on_demand_samples):
            shown = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
            by_metric[name].append(f"{name}{shown and f'{{{shown}}}'} {value!r}")
        lines = []
        for name, (kind, help_text) in METRICS.items():
            if name in by_metric:
                lines += [f"# HELP {name} {help_text}", f"# TYPE {name} {kind}", *by_metric[name]]
        return "".join(f"{line}\n" for line in lines)

    def _samples(self) -> Iterator[Sample]:
        for name, model in self.models.items():
            labels, is_up = {"model": name}, not model.reason and self._is_server_up
            yield Sample("hf_triton_model_up", labels, int(is_up))
            yield Sample("hf_triton_model_deaths_total", labels, model.num_deaths)
            yield Sample("hf_triton_model_restarts_total", labels, model.num_restarts)
            yield Sample("hf_triton_model_given_up", labels, int(model.is_given_up))
        yield Sample("hf_triton_server_up", {}, int(self._is_server_up))
        yield Sample("hf_triton_server_restarts_total", {}, self.num_server_restarts)


def _escaped(label: str) -> str:
    return label.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


@contextlib.contextmanager
def health_port(listen: Listen, health: Health) -> Iterator[None]:
    """Serves ``health`` while the block runs, unless the port is 0. Raises ServerError."""
    if not listen.health_port:
        yield
        return
    listening = listening_socket(listen.host, listen.health_port, "--health-port")
    loop, stop = asyncio.new_event_loop(), asyncio.Event()
    serving = HealthPort(health).serve(listening, stop)
    thread = threading.Thread(target=loop.run_until_complete, args=(serving,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


class HealthPort:
    def __init__(self, health: Health) -> None:
        self._health = health
        self._open: list[asyncio.StreamWriter] = []  # oldest first

    async def serve(self, listening: socket.socket, stop: asyncio.Event) -> None:
        # Without file descriptors it would be told of each second; it is tried again.
        asyncio.get_running_loop().set_exception_handler(lambda _loop, _context: None)
        async with await asyncio.start_server(self._take, sock=listening, backlog=128):
            await stop.wait()
            self._close_oldest(0)

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.append(writer)
        self._close_oldest(_MOST_CONNECTIONS)
        writer.transport.set_write_buffer_limits(0)  # what is drained is sent
        try:
            async with timeout(SLOWEST_CLIENT_S):
                await self._respond(reader, writer)
            writer.close()
        except (asyncio.TimeoutError, OSError):
            writer.transport.abort()
        if writer in self._open:
            self._open.remove(writer)

    def _close_oldest(self, num_left: int) -> None:
        while len(self._open) > num_left:
            self._open.pop(0).transport.abort()

    async def _respond(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            return
        method, path, *_ = [*head.split(b"\r\n", 1)[0].decode("latin-1").split(), "", ""]
        status, kind, text = self._response(method, path.partition("?")[0])
        body = text.encode()
        writer.write(_HEAD.format(status, kind, len(body)).encode())
        writer.write(body if method != "HEAD" else b"")
        await writer.drain()

    def _response(self, method: str, path: str) -> tuple[HTTPStatus, str, str]:
        """Status, content type and body."""
        if method not in ("GET", "HEAD"):
            return HTTPStatus.METHOD_NOT_ALLOWED, _JSON, '{"error": "allowed: GET and HEAD"}\n'
        if path == "/metrics":
            return HTTPStatus.OK, _TEXT, self._health.metrics_text()
        if path == "/ready":
            found = self._health.readiness()
            is_fine, text = found["ready"], json.dumps(found, indent=2)
        elif path == "/live":
            is_fine = self._health.is_live()
            text = json.dumps({"live": is_fine})
        else:
            text = '{"error": "there are /live, /ready and /metrics"}\n'
            return HTTPStatus.NOT_FOUND, _JSON, text
        return HTTPStatus.OK if is_fine else HTTPStatus.SERVICE_UNAVAILABLE, _JSON, f"{text}\n"
