"""A Hub on the loopback interface, as far as ``huggingface_hub`` asks one for a model's files.

Behaves as the Hub's own API does (https://huggingface.co/docs/hub/api): error codes in the header
``X-Error-Code``, a private repository looks like a missing one, a gated one is listed but its files
are refused. Large files are LFS's: they are asked for at the Hub and come, by a redirect, from a
"CDN" under another host name, in ranges where a range is asked for.
"""

from __future__ import annotations

import hashlib
import json
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit

from tests.support.http_server import Handler, serving_http
from tests.support.triton import eventually

if TYPE_CHECKING:
    import pytest

COMMIT = "a" * 40
_CHUNK = 1 << 16


@dataclass
class Repository:
    """A model's files at ``commit``, which ``revisions`` name. ``token`` is asked for where it is
    given.
    """

    files: dict[str, bytes]
    token: str | None = None
    gated: bool = False
    revisions: tuple[str, ...] = ("main", "v1")
    commit: str = COMMIT
    broken: set[str] = field(default_factory=set)  # these files break off half-way
    sent_instead: dict[str, bytes] = field(default_factory=dict)  # what these files really hold
    older: dict[str, dict[str, bytes]] = field(default_factory=dict)  # commit -> files

    def push(self, files: dict[str, bytes], commit: str) -> None:
        """Moves every revision to a new commit."""
        self.older[self.commit] = self.files
        self.files, self.commit = files, commit

    def at(self, revision: str) -> tuple[str, dict[str, bytes]] | None:
        """The commit and the files that a revision names."""
        if revision in (*self.revisions, self.commit):
            return self.commit, self.files
        return (revision, self.older[revision]) if revision in self.older else None


@dataclass
class FakeHub:
    """A Hub that serves files, counts requests and fails as it is told.

    Attributes:
        cuts: each of the next file bodies longer than so many bytes is cut off there.
        statuses: path (or part of one) -> HTTP statuses that the next requests for it get.
        before_piece: called with where each piece of a file body begins, before that is sent.
        sent: bytes of file bodies sent, by file.
        num_open: file bodies of which something is still to be sent.
        description: what stands in place of the API's answer, or of keys of it.
        cdn_url: another address than the usual one.
        sent_once: what the next request for a file gets instead of it.
        ranges_begin_at: where every range begins, whatever was asked for.
    """

    url: str
    repositories: dict[str, Repository] = field(default_factory=dict)
    paths: list[str] = field(default_factory=list)
    ranges: list[str] = field(default_factory=list)
    authorizations: set[str | None] = field(default_factory=set)
    cdn_authorizations: set[str | None] = field(default_factory=set)
    fails: bool = False
    cuts: list[int] = field(default_factory=list)
    resets: bool = False  # a cut is a reset connection instead of a closed one
    before_piece: Callable[[int], object] = lambda start: None
    statuses: dict[str, list[int]] = field(default_factory=dict)
    takes_ranges: bool = True
    ranges_begin_at: int | None = None
    cdn_url: str = ""
    sent_once: dict[str, bytes] = field(default_factory=dict)
    description: bytes | dict[str, Any] = field(default_factory=dict)
    seconds_between_chunks: float = 0.0
    chunk: int = _CHUNK
    sent: Counter[str] = field(default_factory=Counter)
    num_open: int = 0
    most_open: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def cdn(self) -> str:
        """The same server under another name, which gets no token."""
        return self.cdn_url or self.url.replace("127.0.0.1", "localhost")

    def count_anew(self) -> None:
        """Empties ``sent`` once nothing more is to be written to a client that has gone."""
        assert eventually(lambda: self.num_open == 0)
        self.sent.clear()


def ask_from_here(hub: FakeHub, monkeypatch: pytest.MonkeyPatch, no_token: Path) -> None:
    """Lets huggingface_hub in this process ask ``hub``, with no token from anywhere; ``no_token``
    is a file that is not there.
    """
    from huggingface_hub import constants  # which reads the environment when it is imported

    template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, hub.url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(no_token))
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "PRIVATE_REPO_TOKEN"):
        monkeypatch.delenv(name, raising=False)


@contextmanager
def running_hub(port: int = 0) -> Iterator[FakeHub]:
    """A hub on a port, a free one if none is given."""
    hub = FakeHub("")
    handler = type("Handler", (_Handler,), {"hub": hub})
    with serving_http(handler, port, _Server) as given:
        hub.url = f"http://127.0.0.1:{given}"
        yield hub


def is_lfs(name: str) -> bool:
    """True if the Hub keeps a file in LFS."""
    return name.endswith((".safetensors", ".bin", ".h5", ".onnx"))


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Silence where the client has disconnected."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class _Handler(Handler, BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: FakeHub

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.paths.append(path)
        status = self._status_due(path)
        if self.hub.fails or status:
            return self._answer(status or 500, b"{}")
        parts = path.strip("/").split("/")
        if parts[0] == "cdn":
            self.hub.cdn_authorizations.add(self.headers["Authorization"])
            return self._send_body(self.hub.repositories["/".join(parts[1:3])], parts[3:])
        self.hub.authorizations.add(self.headers["Authorization"])
        return self._answer_repository(parts)

    def _answer_repository(self, parts: list[str]) -> None:
        is_api = parts[:2] == ["api", "models"]
        parts = parts[2:] if is_api else parts
        repository = self.hub.repositories.get("/".join(parts[:2]))
        authorization = self.headers["Authorization"]
        allowed = repository is not None and authorization == f"Bearer {repository.token}"
        if repository is None or (repository.token and not repository.gated and not allowed):
            return self._fail(401, "RepoNotFound")
        if authorization == "Bearer hf_invalid":
            return self._fail(401, "", "Invalid credentials in Authorization header")
        kind, revision = (parts[2], parts[3]) if len(parts) > 3 else ("revision", "main")
        found = repository.at(revision)
        if found is None:
            return self._fail(404, "RevisionNotFound")
        if is_api:
            return self._describe(kind, *found)
        if repository.gated and not allowed:
            return self._fail(403, "GatedRepo")
        return self._send_file(repository, found[0], found[1], parts)

    def _describe(self, kind: str, commit: str, files: dict[str, bytes]) -> None:
        if kind == "tree":
            described: Any = [_described(name, content) for name, content in files.items()]
        else:
            siblings = [_sibling(name, content) for name, content in files.items()]
            described = {"id": "a/b", "sha": commit, "siblings": siblings}
        instead = self.hub.description
        if isinstance(instead, dict) and instead:
            described = {**described, **instead}
        body = instead if isinstance(instead, bytes) else json.dumps(described).encode()
        self._answer(200, body)

    def _send_file(
        self, repository: Repository, commit: str, files: dict[str, bytes], parts: list[str]
    ) -> None:
        name = "/".join(parts[4:])
        if name not in files:
            return self._fail(404, "EntryNotFound")
        content = files[name]
        headers = {"ETag": f'"{git_oid(content)}"', "X-Repo-Commit": commit}
        if is_lfs(name):
            headers["X-Linked-Etag"] = f'"{hashlib.sha256(content).hexdigest()}"'
            headers["X-Linked-Size"] = str(len(content))
            place = f"{parts[0]}/{parts[1]}/{commit}/{quote(name)}"
            headers["Location"] = f"{self.hub.cdn}/cdn/{place}?signed=secret"
            return self._answer(302, b"", **headers)
        if self.command == "HEAD":
            return self._answer(200, content, **headers)
        return self._send_body(repository, [commit, *parts[4:]], **headers)

    def _send_body(self, repository: Repository, parts: list[str], **headers: str) -> None:
        """A file's bytes, or the range of them that is asked for."""
        name = "/".join(parts[1:])
        if name in repository.broken:
            self.close_connection = True
            return self._answer(404, b"", **{**headers, "X-Error-Message": "broken off"})
        found = repository.at(parts[0])
        assert found is not None
        content = repository.sent_instead.get(name, found[1][name])
        content = self.hub.sent_once.pop(name, content)
        wanted = self.headers["Range"] if self.hub.takes_ranges else None
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted else 0
        if wanted:
            self.hub.ranges.append(wanted)
        if start >= len(content) > 0:
            return self._answer(416, b"", **{"Content-Range": f"bytes */{len(content)}"})
        if wanted and self.hub.ranges_begin_at is not None:
            start = self.hub.ranges_begin_at
        if wanted:
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        self._headers(206 if wanted else 200, len(content) - start, headers)
        return self._write(name, content[start:])

    def _write(self, name: str, body: bytes) -> None:
        with self.hub.lock:
            due = next((cut for cut in self.hub.cuts if cut < len(body)), None)
            if due is not None:
                self.hub.cuts.remove(due)
            self.hub.num_open += 1
            self.hub.most_open = max(self.hub.most_open, self.hub.num_open)
        is_open = True
        try:
            for start in range(0, len(body[:due]), self.hub.chunk):
                self.hub.before_piece(start)
                piece = body[:due][start : start + self.hub.chunk]
                with self.hub.lock:  # before it is sent: who has it all finds it counted
                    self.hub.sent[name] += len(piece)
                    if start + len(piece) == len(body[:due]):
                        self.hub.num_open, is_open = self.hub.num_open - 1, False
                self.wfile.write(piece)
                time.sleep(self.hub.seconds_between_chunks)
        except OSError:  # the client has disconnected
            self.close_connection = True
        finally:
            with self.hub.lock:
                self.hub.num_open -= is_open
        if due is not None:
            self._cut()

    def _cut(self) -> None:
        self.close_connection = True
        if self.hub.resets:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            self.connection.close()
        else:
            self.connection.shutdown(socket.SHUT_RDWR)

    def _status_due(self, path: str) -> int | None:
        with self.hub.lock:
            for part, statuses in self.hub.statuses.items():
                if part in path and statuses:
                    return statuses.pop(0)
        return None

    def _fail(self, status: int, code: str, message: str = "") -> None:
        self._answer(status, b"{}", **{"X-Error-Code": code, "X-Error-Message": message or code})

    def _answer(self, status: int, body: bytes, **headers: str) -> None:
        self._headers(status, len(body), headers)
        if self.command == "GET":
            self.wfile.write(body)

    def _headers(self, status: int, length: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(length)}.items():
            self.send_header(name, value)
        self.end_headers()


def _described(name: str, content: bytes) -> dict[str, Any]:
    described: dict[str, Any] = {"type": "file", "path": name, "size": len(content)}
    if is_lfs(name):
        digest = hashlib.sha256(content).hexdigest()
        described["lfs"] = {"oid": digest, "size": len(content), "pointerSize": 120}
        described["oid"] = git_oid(f"pointer to {digest}".encode())
    else:
        described["oid"] = git_oid(content)
    return described


def _sibling(name: str, content: bytes) -> dict[str, Any]:
    """A file as the API has it where it is asked for ``blobs``."""
    described = _described(name, content)
    sibling = {"rfilename": name, "size": len(content), "blobId": described["oid"]}
    if "lfs" in described:
        sibling["lfs"] = {**described["lfs"], "sha256": described["lfs"]["oid"]}
    return sibling


def git_oid(content: bytes) -> str:
    """Git's name for a blob."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
