"""Serves a server's health over HTTP: ``/live``, ``/ready`` and ``/metrics``. Changes nothing.

A connection is for one request. Clients can't keep others out: of more than 64 connections the
oldest is closed, and each after 5 s.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from http import HTTPStatus

from hf_triton.ports.time_limit import timeout
from hf_triton.serving.supervision.health import Health
from hf_triton.tritonserver.listen import Listen, listening_socket

_TEXT = "text/plain; version=0.0.4; charset=utf-8"
_JSON = "application/json"
_SLOWEST_CLIENT_S = 5.0
_MOST_CONNECTIONS = 64
_HEAD = (
    "HTTP/1.1 {0.value} {0.phrase}\r\nContent-Type: {1}\r\nContent-Length: {2}\r\n"
    "Cache-Control: no-store\r\nConnection: close\r\n\r\n"
)


@contextlib.contextmanager
def health_port(listen: Listen, health: Health) -> Iterator[None]:
    """Serves ``health`` while the block runs; not at all where the port is 0. Raises ServerError.

    Its thread never keeps the process from ending.
    """
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
    """The connections of one port."""

    def __init__(self, health: Health) -> None:
        self._health = health
        self._open: list[asyncio.StreamWriter] = []  # oldest first

    async def serve(self, listening: socket.socket, stop: asyncio.Event) -> None:
        """Answers until ``stop``."""
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
            async with timeout(_SLOWEST_CLIENT_S):
                await self._answer(reader, writer)
            writer.close()
        except (asyncio.TimeoutError, OSError):
            writer.transport.abort()
        if writer in self._open:
            self._open.remove(writer)

    def _close_oldest(self, num_left: int) -> None:
        while len(self._open) > num_left:
            self._open.pop(0).transport.abort()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            return
        method, path, *_ = [*head.split(b"\r\n", 1)[0].decode("latin-1").split(), "", ""]
        status, kind, text = self.answer(method, path.partition("?")[0])
        body = text.encode()
        writer.write(_HEAD.format(status, kind, len(body)).encode())
        writer.write(body if method != "HEAD" else b"")
        await writer.drain()

    def answer(self, method: str, path: str) -> tuple[HTTPStatus, str, str]:
        """Status, content type and body."""
        if method not in ("GET", "HEAD"):
            return HTTPStatus.METHOD_NOT_ALLOWED, _JSON, '{"error": "allowed: GET and HEAD"}\n'
        if path == "/metrics":
            return HTTPStatus.OK, _TEXT, self._health.metrics_text()
        if path == "/ready":
            found = self._health.readiness()
            return _status(found["ready"]), _JSON, json.dumps(found, indent=2) + "\n"
        if path == "/live":
            is_live = self._health.is_live()
            return _status(is_live), _JSON, json.dumps({"live": is_live}) + "\n"
        return HTTPStatus.NOT_FOUND, _JSON, '{"error": "there are /live, /ready and /metrics"}\n'


def _status(is_fine: bool) -> HTTPStatus:
    return HTTPStatus.OK if is_fine else HTTPStatus.SERVICE_UNAVAILABLE
