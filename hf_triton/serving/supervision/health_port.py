"""Serves a server's health over HTTP: ``/live``, ``/ready`` and ``/metrics``. Changes nothing.

Clients can't keep others out: of more than 64 connections the oldest is closed, and each after
5 s.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from generator.errors import ServerError
from hf_triton.serving.supervision.health import Health
from hf_triton.tritonserver.listen import Listen

_TEXT = "text/plain; version=0.0.4; charset=utf-8"
_JSON = "application/json"
_SLOWEST_CLIENT_S = 5.0
_MOST_CONNECTIONS = 64
_LOOK_EVERY_S = 0.1


@contextlib.contextmanager
def health_port(listen: Listen, health: Health) -> Iterator[None]:
    """Serves ``health`` while the block runs; not at all where the port is 0. Raises ServerError.

    Its threads never keep the process from ending.
    """
    if not listen.health_port:
        yield
        return
    try:
        server = _server(listen, health)
    except OSError as error:
        message = f"can't listen on port {listen.health_port} ({error.strerror}); see --health-port"
        raise ServerError(message) from None
    thread = threading.Thread(target=server.serve_forever, args=(_LOOK_EVERY_S,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


def _server(listen: Listen, health: Health) -> ThreadingHTTPServer:
    found = socket.getaddrinfo(listen.host, listen.health_port, type=socket.SOCK_STREAM)

    class Handler(_Handler):
        answers = Answers(health)

    class Server(_Server):
        address_family = found[0][0]

    address: Any = found[0][4]
    return Server(address, Handler)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    block_on_close = False

    def __init__(self, *args: Any) -> None:
        self._open: dict[socket.socket, float] = {}  # since when, oldest first
        self._lock = threading.Lock()
        super().__init__(*args)

    def server_bind(self) -> None:  # without the look-up of our own name, which can take long
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)

    def get_request(self) -> tuple[socket.socket, Any]:
        try:
            connection, address = self.socket.accept()
        except OSError:  # out of file descriptors: it would be tried again at once, for ever
            time.sleep(_LOOK_EVERY_S)
            raise
        with self._lock:
            self._open[connection] = time.monotonic()
        return connection, address

    def service_actions(self) -> None:
        """Hangs up on connections that are too many or too old."""
        now = time.monotonic()
        with self._lock:
            num_spare = len(self._open) - _MOST_CONNECTIONS
            for number, (connection, since) in enumerate(list(self._open.items())):
                if number < num_spare or now - since > _SLOWEST_CLIENT_S:
                    _hang_up(connection)
                    del self._open[connection]

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is not worth a traceback."""


def _hang_up(connection: socket.socket) -> None:
    """Its thread reads the end, and closes it."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


class Answers:
    """What each path is answered with; knows no sockets."""

    def __init__(self, health: Health) -> None:
        self._health = health

    def get(self, path: str) -> tuple[HTTPStatus, str, str]:
        """Status, content type and body."""
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


class _Handler(BaseHTTPRequestHandler):
    answers: Answers
    timeout = _SLOWEST_CLIENT_S
    server_version = "hf-triton"
    sys_version = ""

    def do_GET(self) -> None:
        """Answers with a body."""
        self.wfile.write(self._head())

    def do_HEAD(self) -> None:
        """The same without."""
        self._head()

    def _head(self) -> bytes:
        status, kind, text = self.answers.get(self.path.partition("?")[0])
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        return body

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Probes come every few seconds: nothing is logged."""
