"""Serves a server's health over HTTP: ``/live``, ``/ready`` and ``/metrics``. Changes nothing."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from generator.errors import ServerError
from generator.server.listen import Listen
from generator.supervision.health import Health

_TEXT = "text/plain; version=0.0.4; charset=utf-8"
_JSON = "application/json"
_SLOWEST_CLIENT_S = 5.0


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
    thread = threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True)
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

    class Server(ThreadingHTTPServer):
        address_family = found[0][0]
        daemon_threads = True
        request_queue_size = 128
        block_on_close = False

        def server_bind(self) -> None:  # without the look-up of our own name, which can take long
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self.socket.bind(self.server_address)

        def handle_error(self, request: object, client_address: object) -> None:
            """A client that went away is not worth a traceback."""

    address: Any = found[0][4]
    return Server(address, Handler)


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
