"""A Hub on the loopback interface, as far as ``huggingface_hub`` asks one for a model's files.

Behaves as the Hub's own API does (https://huggingface.co/docs/hub/api): error codes in the header
``X-Error-Code``, a private repository looks like a missing one, a gated one is listed but its files
are refused.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "a" * 40


@dataclass
class Repository:
    """A model's files. ``token`` is asked for where it is given."""

    files: dict[str, bytes]
    token: str | None = None
    gated: bool = False
    revisions: tuple[str, ...] = ("main", "v1", COMMIT)
    broken: set[str] = field(default_factory=set)  # these files break off half-way


@dataclass
class FakeHub:
    """What is served, and what was asked for."""

    url: str
    repositories: dict[str, Repository] = field(default_factory=dict)
    paths: list[str] = field(default_factory=list)
    authorizations: set[str | None] = field(default_factory=set)
    fails: bool = False


@contextmanager
def running_hub() -> Iterator[FakeHub]:
    """A hub on a free port."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    hub = FakeHub(f"http://127.0.0.1:{server.server_address[1]}")
    server.hub = hub  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Silence."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        hub: FakeHub = self.server.hub  # type: ignore[attr-defined]
        path = unquote(urlsplit(self.path).path)
        hub.paths.append(path)
        hub.authorizations.add(self.headers["Authorization"])
        if hub.fails:
            return self._answer(500, b"{}")
        parts = path.strip("/").split("/")
        is_api = parts[:2] == ["api", "models"]
        parts = parts[2:] if is_api else parts
        repository = hub.repositories.get("/".join(parts[:2]))
        allowed = repository and self.headers["Authorization"] == f"Bearer {repository.token}"
        if repository is None or (repository.token and not repository.gated and not allowed):
            return self._fail(401, "RepoNotFound")
        kind, revision = (parts[2], parts[3]) if len(parts) > 3 else ("revision", "main")
        if revision not in repository.revisions:
            return self._fail(404, "RevisionNotFound")
        if is_api:
            return self._describe(repository, kind)
        if repository.gated and not allowed:
            return self._fail(403, "GatedRepo")
        return self._send_file(repository, "/".join(parts[4:]))

    def _describe(self, repository: Repository, kind: str) -> None:
        if kind == "tree":
            described: Any = [
                {"type": "file", "path": name, "size": len(data), "oid": _oid(data)}
                for name, data in repository.files.items()
            ]
        else:
            siblings = [{"rfilename": name} for name in repository.files]
            described = {"id": "a/b", "sha": COMMIT, "siblings": siblings}
        self._answer(200, json.dumps(described).encode())

    def _send_file(self, repository: Repository, name: str) -> None:
        data = repository.files[name]
        headers = {"ETag": f'"{_oid(data)}"', "X-Repo-Commit": COMMIT}
        if name in repository.broken and self.command == "GET":
            self.close_connection = True
            headers["X-Error-Message"] = "broken off"
            return self._answer(404, b"", **headers)
        return self._answer(200, data, **headers)

    def _fail(self, status: int, code: str) -> None:
        self._answer(status, b"{}", **{"X-Error-Code": code, "X-Error-Message": code})

    def _answer(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


def _oid(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()
