"""HTTP servers of one test, in its own process."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Handler(BaseHTTPRequestHandler):
    """One that logs nothing."""

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        """The whole answer to a request; ``headers`` with ``_`` for ``-``."""
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


@contextlib.contextmanager
def serving_http(
    handler: type[BaseHTTPRequestHandler],
    port: int = 0,
    server_class: type[ThreadingHTTPServer] = ThreadingHTTPServer,
) -> Iterator[int]:
    """Serves until the block ends; on a free port if none is given, which it yields."""
    with server_class(("127.0.0.1", port), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()
