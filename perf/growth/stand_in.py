"""A server as far as planning an apply asks it: ``python -m perf.growth.stand_in REPOSITORY``.

Answers what tritonserver would if it had loaded every model of the repository (``--loaded``), or
none, so that planning for a thousand models can be measured where no machine could load them.
Prints its port, and serves until it is terminated.
"""

from __future__ import annotations

import argparse
import json
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from generator.digest import CONFIG_FILE, DIGEST_PARAMETER, digest_in


class StandIn(ThreadingHTTPServer):
    """Reads a folder's digest when it is asked for; listens on a free port of this machine."""

    request_queue_size = 64
    daemon_threads = True

    def __init__(self, repository: Path, *, loaded: bool) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repository, self.loaded = repository, loaded

    def index(self) -> list[dict[str, str]]:
        """Every folder; those that are loaded with their version."""
        version = {"version": "1", "state": "READY"} if self.loaded else {}
        names = sorted(path.name for path in self.repository.iterdir())
        return [
            {"name": name, **({} if name.startswith(".hf-triton") else version)} for name in names
        ]

    def config(self, name: str) -> dict[str, object]:
        """As a loaded model has it, with the digest of what lies on disk."""
        digest = digest_in((self.repository / name / CONFIG_FILE).read_bytes())
        return {"name": name, "parameters": {DIGEST_PARAMETER: {"string_value": digest}}}


class _Handler(BaseHTTPRequestHandler):
    server: StandIn

    def do_GET(self) -> None:
        parts = self._parts()
        if not parts:
            self._answer({"name": "stand-in", "extensions": ["model_repository"]})
        elif parts[0] == "models" and parts[-1] == "config":
            self._answer(self.server.config(parts[1]))
        else:
            self._answer({"error": "unknown"}, 404)

    def do_POST(self) -> None:
        self._answer(self.server.index() if self._parts()[-1] == "index" else {})

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002, http.server's name
        """Says nothing."""

    def _parts(self) -> list[str]:
        words = self.path.removeprefix("/v2").split("/")
        return [urllib.parse.unquote(word) for word in words if word]

    def _answer(self, value: object, status: int = 200) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("repository", type=Path)
    parser.add_argument("--loaded", action="store_true")
    args = parser.parse_args()
    server = StandIn(args.repository, loaded=args.loaded)
    print(server.server_address[1], flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
