"""A server as far as planning an apply asks it: it answers what tritonserver would if it had loaded
every model of a repository, or none, so that planning for a thousand models can be measured where
no machine could load them.
"""

from __future__ import annotations

import contextlib
import json
import threading
import urllib.parse
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from generator.render.digest import CONFIG_FILE, DIGEST_PARAMETER, digest_in


@contextlib.contextmanager
def stand_in(repository: Path, *, loaded: bool) -> Iterator[int]:
    """Its port: one of this machine that was free."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer = _answer(repository, self.path, loaded=loaded)
            body = json.dumps({"error": "unknown"} if answer is None else answer).encode()
            self.send_response(404 if answer is None else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET  # noqa: N815, a name of http.server's

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002, http.server's name
            """Says nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


def _answer(repository: Path, path: str, *, loaded: bool) -> object | None:
    """None of what it does not have."""
    match [urllib.parse.unquote(word) for word in path.removeprefix("/v2").split("/") if word]:
        case []:
            return {"name": "stand-in", "extensions": ["model_repository"]}
        case ["models", name, *_, "config"]:  # as a loaded model has it
            digest = digest_in((repository / name / CONFIG_FILE).read_bytes())
            return {"name": name, "parameters": {DIGEST_PARAMETER: {"string_value": digest}}}
        case [*_, "index"]:
            names = sorted(each.name for each in repository.iterdir())
            state = {"version": "1", "state": "READY"}
            return [
                {"name": name, **(state if loaded and not name.startswith(".hf-triton") else {})}
                for name in names
            ]
        case [*_, "load" | "unload"]:
            return {}
    return None
