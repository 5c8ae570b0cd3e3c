"""`hf-triton fetch` from a folder of a web server, which tells nobody what it has."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import fsspec
import pytest

from generator.fetch import hub_client, object_store
from tests.support.http_server import Handler, serving_http
from tests.unit.fetch.workplace import Workplace

URL = "https://models.example.com/v1/tiny"
SHARDS = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
FILES = {
    "config.json": b"{}",
    "model.safetensors.index.json": json.dumps(SHARDS).encode(),
    "model-1.safetensors": b"weights" * 1000,
    "model-2.safetensors": b"others" * 300,
    "modules.json": b'[{"path": ""}, {"path": "1_Pooling"}]',
    "1_Pooling/config.json": b"[]",
}
UNKNOWN = {"README.md": b"nobody asks for it"}


@dataclass
class Web:
    """A web server's files, its status for others, and the paths that it was asked for."""

    files: dict[str, bytes]
    absent: int = 404
    takes_ranges: bool = True
    has_versions: bool = True
    asked: list[str] = field(default_factory=list)


@dataclass
class Files:
    """fsspec's, of a server on this machine in the place of the address."""

    base: str
    own: Any = field(default_factory=lambda: fsspec.filesystem("http", skip_instance_cache=True))

    def info(self, place: str) -> Any:
        return self.own.info(place.replace("https://models.example.com", self.base))

    def cat_file(self, place: str, **span: int) -> Any:
        return self.own.cat_file(place.replace("https://models.example.com", self.base), **span)


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    found = Web({**FILES, **UNKNOWN})

    class Folder(Handler, BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.wfile.write(self._head())

        def do_HEAD(self) -> None:
            self._head()

        def _head(self) -> bytes:
            name = self.path.removeprefix("/v1/tiny/")
            found.asked.append(name)
            content = found.files.get(name)
            if content is None:
                self.send_error(found.absent)
                return b""
            span = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
            part = content
            if span and found.takes_ranges:
                part = content[int(span[1]) : int(span[2]) + 1]
            self.send_response(206 if part != content else 200)
            if found.has_versions:
                self.send_header("ETag", f'"{hashlib.md5(content).hexdigest()}"')
            self.send_header("Content-Length", str(len(part)))
            self.end_headers()
            return part

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: object, client_address: object) -> None:
            """A client may leave before it has read all."""

    monkeypatch.setattr(object_store, "BLOCK", 1000)
    monkeypatch.setattr(hub_client, "WAITS_S", ())
    with serving_http(Folder, server_class=Server) as port:
        files = Files(f"http://127.0.0.1:{port}")
        monkeypatch.setattr(object_store, "file_system", lambda scheme: files)
        yield found


@pytest.fixture
def work(workplace: Workplace) -> Workplace:
    workplace.write("tiny", model=URL)
    return workplace


def test_what_a_model_has_is_found_by_its_names_and_by_those_that_it_names(
    work: Workplace, web: Web
) -> None:
    work.fetch()
    assert work.loaded() == work.snapshots()[0]
    assert work.files() == FILES
    assert set(work.lock["models"][URL]["main"]["files"]) == set(FILES)
    assert "all here" in work.fetch().out


def test_a_transformer_in_a_folder_of_its_own_is_found(web: Web, work: Workplace) -> None:
    """As sentence-transformers' first releases saved it."""
    named = {f"0_Transformer/{name}": b"{}" for name in ("config.json", "tokenizer.json")}
    web.files = {
        **named,
        "0_Transformer/model.safetensors": b"weights",
        "modules.json": b'[{"path": "0_Transformer"}, {"path": "1_Pooling"}]',
    }
    work.fetch()
    assert set(work.lock["models"][URL]["main"]["files"]) == {*web.files}


def test_a_bucket_that_may_be_read_and_not_listed_forbids_what_it_has_not(
    work: Workplace, web: Web
) -> None:
    web.absent = 403
    work.fetch()
    web.files.clear()
    (work.folder / "models.lock").unlink()
    assert "the store refuses it: set NETRC" in work.refused("fetch", "--update")


@pytest.mark.parametrize(
    "change, text",
    [
        ({"files": {}}, "no such folder, or nothing in it"),
        ({"absent": 500, "files": {}}, "gave no answer"),
        ({"has_versions": False}, "reports no version"),
        ({"takes_ranges": False}, "ignores HTTP Range and sends whole files"),
        ({"files": {**FILES, "modules.json": b"{"}}, "modules.json is not JSON"),
    ],
)
def test_what_cant_be_fetched_is_told_in_a_line(
    work: Workplace, web: Web, change: dict[str, Any], text: str
) -> None:
    for name, value in change.items():
        setattr(web, name, value)
    assert text in work.refused("fetch")
    assert not work.snapshots()
