"""A server as far as planning an apply asks it: ``python -m perf.growth.axes.stand_in REPOSITORY``.

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

from generator.render.digest import CONFIG_FILE, DIGEST_PARAMETER, digest_in


class StandIn(ThreadingHTTPServer):
    """Reads a folder's digest when it is asked for; listens on a free port of this machine."""

    request_queue_size = 64
    daemon_threads = True

    def __init__(self, repository: Path, *, loaded: bool) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repository, self.loaded = repository, loaded

    def answer(self, path: str) -> object | None:
        """What is answered; None of what it does not have."""
        match [urllib.parse.unquote(word) for word in path.removeprefix("/v2").split("/") if word]:
            case []:
                return {"name": "stand-in", "extensions": ["model_repository"]}
            case ["models", name, *_, "config"]:  # as a loaded model has it
                digest = digest_in((self.repository / name / CONFIG_FILE).read_bytes())
                return {"name": name, "parameters": {DIGEST_PARAMETER: {"string_value": digest}}}
            case [*_, "index"]:
                return [self._entry(path.name) for path in sorted(self.repository.iterdir())]
            case [*_, "load" | "unload"]:
                return {}
        return None

    def _entry(self, name: str) -> dict[str, str]:
        is_loaded = self.loaded and not name.startswith(".hf-triton")
        return {"name": name, **({"version": "1", "state": "READY"} if is_loaded else {})}


class _Handler(BaseHTTPRequestHandler):
    server: StandIn

    def do_GET(self) -> None:
        answer = self.server.answer(self.path)
        body = json.dumps({"error": "unknown"} if answer is None else answer).encode()
        self.send_response(404 if answer is None else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET  # noqa: N815, a name of http.server's

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002, http.server's name
        """Says nothing."""


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
