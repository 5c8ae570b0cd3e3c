"""`hf-triton fetch` of artifacts in registries: a small one with tokens, and docker-registry."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from generator.fetch import hub_client, object_store
from tests.fetch.workplace import Workplace
from tests.support.triton import eventually, free_ports

pytest.importorskip("oras")

TITLE = "org.opencontainers.image.title"
FILES = {"config.json": b"{}", "model.safetensors": b"weights" * 1000, "vocab/words.txt": b"a b"}
REPOSITORY = "org/tiny"
SECRET = "TheSecretThatMustNotBeSeen"
BASIC = base64.b64encode(f"user:{SECRET}".encode()).decode()
# user, with SECRET
HTPASSWD = "user:$2b$04$7Tn7hDeD5RnruGsy2nu9COlLf/IsOKOecosduT/XvWvLftXZrX/O2\n"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
EMPTY = {"mediaType": "application/vnd.oci.empty.v1+json", "size": 2}


@dataclass
class Registry:
    """A registry on this machine: artifacts, ``blobs`` by digest, tokens that serve so often."""

    host: str = ""
    manifests: dict[str, bytes] = field(default_factory=dict)
    blobs: dict[str, bytes] = field(default_factory=dict)
    uses_of_token: int = 1000
    tokens: dict[str, int] = field(default_factory=dict)
    ranges: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"oci://{self.host}/{REPOSITORY}:v1"

    def push(self, files: dict[str, bytes], key: str = TITLE, **notes: str) -> None:
        """As ``oras push`` does it."""
        layers = [
            {
                "mediaType": "application/octet-stream",
                "digest": self.put(content),
                "size": len(content),
                "annotations": {key: name, **notes},
            }
            for name, content in files.items()
        ]
        config = {**EMPTY, "digest": self.put(b"{}")}
        manifest = {"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": layers}
        self.put_manifest(json.dumps(manifest).encode())

    def put(self, content: bytes) -> str:
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        self.blobs[digest] = content
        return digest

    def put_manifest(self, content: bytes) -> None:
        self.manifests["v1"] = content


class Docker(Registry):
    """Debian's docker-registry."""

    def _send(self, method: str, url: str, content: bytes, kind: str) -> str:
        headers = {"Authorization": f"Basic {BASIC}", "Content-Type": kind}
        address = url if "://" in url else f"http://{self.host}/v2/{REPOSITORY}/{url}"
        request = urllib.request.Request(address, content, headers, method=method)
        with urllib.request.urlopen(request) as answer:
            return str(answer.headers["Location"])

    def put(self, content: bytes) -> str:
        digest = super().put(content)
        place = self._send("POST", "blobs/uploads/", b"", "application/octet-stream")
        self._send("PUT", f"{place}&digest={digest}", content, "application/octet-stream")
        return digest

    def put_manifest(self, content: bytes) -> None:
        self._send("PUT", "manifests/v1", content, MANIFEST)


class _Handler(BaseHTTPRequestHandler):
    registry: Registry

    def log_message(self, *_: Any) -> None:
        """Says nothing."""

    def do_GET(self) -> None:
        registry, given = self.registry, self.headers.get("Authorization", "")
        kind, _, name = self.path.removeprefix(f"/v2/{REPOSITORY}/").partition("/")
        if self.path.startswith("/token"):
            if given != f"Basic {BASIC}":
                return self._answer(401, b"{}")
            token = f"token-{len(registry.tokens)}"
            registry.tokens[token] = registry.uses_of_token
            return self._answer(200, json.dumps({"token": token}).encode())
        token = given.removeprefix("Bearer ")
        if registry.tokens.get(token, 0) <= 0:
            realm = f'Bearer realm="http://{registry.host}/token",service="here",scope="pull"'
            return self._answer(401, b"{}", realm)
        registry.tokens[token] -= 1
        found = (registry.manifests if kind == "manifests" else registry.blobs).get(name)
        if found is None:
            return self._answer(404, b"{}")
        if part := self.headers.get("Range", "").removeprefix("bytes="):
            registry.ranges.append(part)
            start, end = map(int, part.split("-"))
            return self._answer(206, found[start : end + 1])
        return self._answer(200, found)

    def _answer(self, status: int, content: bytes, challenge: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        if challenge:
            self.send_header("WWW-Authenticate", challenge)
        self.end_headers()
        self.wfile.write(content)


@pytest.fixture
def small() -> Iterator[Registry]:
    registry = Registry()
    server = ThreadingHTTPServer(
        ("127.0.0.1", 0), type("Handler", (_Handler,), {"registry": registry})
    )
    registry.host = f"127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield registry
    server.shutdown()
    server.server_close()


@pytest.fixture
def docker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Docker]:
    program = shutil.which("docker-registry")
    if program is None:
        pytest.skip("Debian's package docker-registry is not installed")
    folder, registry = tmp_path_factory.mktemp("registry"), Docker()
    registry.host = f"127.0.0.1:{free_ports().http_port}"
    (folder / "htpasswd").write_text(HTPASSWD)
    settings = {
        "version": 0.1,
        "storage": {"filesystem": {"rootdirectory": str(folder / "data")}},
        "http": {"addr": registry.host},
        "auth": {"htpasswd": {"realm": "here", "path": str(folder / "htpasswd")}},
    }
    (folder / "config.yml").write_text(json.dumps(settings))
    with subprocess.Popen(
        [program, "serve", str(folder / "config.yml")], stderr=subprocess.DEVNULL
    ) as process:
        try:
            assert eventually(lambda: _answers(registry), 30)
            yield registry
        finally:
            process.terminate()


def _answers(registry: Docker) -> bool:
    try:
        registry.put(b"")
    except OSError:
        return False
    return True


@pytest.fixture(params=["small", "docker"])
def registry(request: pytest.FixtureRequest) -> Registry:
    found: Registry = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Workplace]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    monkeypatch.setattr(object_store, "_BLOCK", 1000)
    monkeypatch.setattr(hub_client, "WAITS_S", (0.0, 0.0))
    object_store._file_system.cache_clear()
    yield Workplace(tmp_path, capsys)
    object_store._file_system.cache_clear()


def log_in(work: Workplace, registry: Registry, login: str = BASIC) -> None:
    """As ``docker login`` does it."""
    (work.folder / "docker").mkdir(exist_ok=True)
    config = {"auths": {registry.host: {"auth": login}}}
    (work.folder / "docker" / "config.json").write_text(json.dumps(config))
    work.write("tiny", model=registry.url)


def files(work: Workplace) -> dict[str, bytes]:
    return {
        "/".join(path.parts[len(work.cache().parts) + 3 :]): path.read_bytes()
        for path in work.cache().glob("models--oci*/snapshots/*/**/*")
        if path.is_file()
    }


@pytest.mark.parametrize("key", [TITLE, "org.cncf.model.filepath"])
def test_an_artifact_is_fetched_and_locked_by_its_digests(
    work: Workplace, registry: Registry, key: str
) -> None:
    log_in(work, registry)
    registry.push(FILES, key)
    work.fetch()
    assert files(work) == FILES
    locked = work.lock["models"][registry.url]["main"]["files"]
    assert {
        name: registry.blobs[f"sha256:{one['sha256']}"] for name, one in locked.items()
    } == FILES
    assert (work.loaded() / "config.json").read_bytes() == b"{}"
    assert work.run("verify").code == 0


def test_a_tag_that_has_moved_is_refused_until_it_is_asked_for(
    work: Workplace, registry: Registry
) -> None:
    log_in(work, registry)
    registry.push(FILES)
    work.fetch()
    registry.push({**FILES, "config.json": b"[]"})
    shutil.rmtree(work.cache())
    told = work.refused("fetch", "--locked")
    assert "config.json has changed since it was listed" in told
    assert "if the new one is right, run hf-triton fetch --update tiny" in told
    work.fetch("--update")
    assert files(work)["config.json"] == b"[]"


def test_what_was_cut_off_goes_on_with_a_new_token(work: Workplace, small: Registry) -> None:
    log_in(work, small)
    small.push(FILES)
    digest = f"sha256:{hashlib.sha256(FILES['model.safetensors']).hexdigest()}"
    small.blobs[digest] = FILES["model.safetensors"][:2500]
    assert "the store's answer ended early" in work.refused("fetch", "--max-workers=1")
    assert "model.safetensors" not in files(work)
    small.blobs[digest], small.uses_of_token = FILES["model.safetensors"], 2
    small.tokens.clear()
    small.ranges.clear()
    work.fetch("--max-workers=1")
    assert files(work) == FILES
    assert small.ranges[0] == "2000-2999"
    assert len(small.tokens) > 3


@pytest.mark.threat("store-credentials")
def test_credentials_that_are_refused_are_told_of_and_not_quoted(
    work: Workplace, registry: Registry
) -> None:
    registry.push(FILES)
    log_in(work, registry, base64.b64encode(f"who:{SECRET}".encode()).decode())
    told = work.refused("fetch")
    assert "the store refuses it: set DOCKER_CONFIG, a folder whose config.json" in told
    assert SECRET not in told
    shutil.rmtree(work.folder / "docker")
    object_store._file_system.cache_clear()
    assert "the store refuses it" in work.refused("fetch")
    assert files(work) == {}


def test_what_is_no_folder_of_files_is_one_line(work: Workplace, registry: Registry) -> None:
    log_in(work, registry)
    assert "the store has no such folder" in work.refused("fetch")
    registry.push({"model": b"tar"}, **{"io.deis.oras.content.unpack": "true"})
    assert "model is a packed folder: push its files one by one" in work.refused("fetch")
    registry.push({"model": b"tar"}, "title")
    assert f"none of its layers is a file with a name ({TITLE})" in work.refused("fetch")


@pytest.mark.threat("hub-file-names")
def test_a_layer_whose_name_leads_out_of_the_cache_is_refused(
    work: Workplace, registry: Registry
) -> None:
    log_in(work, registry)
    registry.push({"../../up.json": b"{}"})
    assert "'../../up.json' is not a path inside a folder" in work.refused("fetch")


@pytest.mark.parametrize("manifest", [b"[]", b'{"layers": [1]}', b'{"manifests": []}'])
def test_a_broken_manifest_is_one_line(work: Workplace, small: Registry, manifest: bytes) -> None:
    log_in(work, small)
    small.put_manifest(manifest)
    assert "what the registry has there is no artifact with layers" in work.refused("fetch")
