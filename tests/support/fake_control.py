"""A Triton as far as loading goes: the HTTP API of tritonserver 24.10 over a repository on disk.

Loads in no time and runs nothing. A version fails to load where its model.json has the option
``fail``, as an echo model's does. Keeps what a load keeps: a failing version leaves the one before
ready, and a load answers 200 all the same where the one that failed is an ensemble's step. A
version is asked whether it is ready, as from 26.03 on: an echo model's option ``is_ready``.
"""

from __future__ import annotations

import contextlib
import json
import threading
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import patch

from generator.render import model_config
from generator.repository.versions import is_version, served_by
from hf_triton.tritonserver.http_api import ServerApi
from hf_triton.tritonserver.triton_texts import one_line
from tests.support.http_server import Handler, serving_http
from tests.support.triton import post


class LoadError(Exception):
    """A load's error."""


@dataclass
class FakeTriton:
    """``events`` are the loads and unloads that were asked for; ``held`` the folders whose old
    versions still have requests; ``metrics`` the text of its /metrics, at the same port.
    """

    repository: Path
    events: list[str] = field(default_factory=list)
    held: set[str] = field(default_factory=set)
    states: dict[str, dict[int, str]] = field(default_factory=dict)
    reasons: dict[str, dict[int, str]] = field(default_factory=dict)
    configs: dict[str, dict[str, Any]] = field(default_factory=dict)
    port: int = 0
    metrics: str = ""

    def index(self) -> list[dict[str, str]]:
        """Every folder of the repository, and every version that was ever loaded."""
        self._release()
        folders = sorted({path.name for path in self.repository.iterdir() if path.is_dir()})
        found = [{"name": name} for name in folders if name not in self.states]
        for name, states in self.states.items():
            for version, state in states.items():
                entry = {"name": name, "version": str(version), "state": state}
                reason = self.reasons.get(name, {}).get(version)
                found.append({**entry, "reason": reason} if reason else entry)
        return found

    def load(self, name: str) -> None:
        """Raises LoadError."""
        self.events.append(f"load {name}")
        folder = self.repository / name
        try:
            text = (folder / "config.pbtxt").read_text()
        except OSError:
            raise LoadError(
                f"failed to load '{name}', failed to poll from model repository"
            ) from None
        config = model_config.as_dict(model_config.parse(text))
        for step in config.get("ensemble_scheduling", {}).get("step", []):
            with contextlib.suppress(LoadError):  # as Triton: the step's old version does
                self._load_own(step["model_name"])
        self._load_own(name)

    def unload(self, name: str) -> None:
        self.events.append(f"unload {name}")
        for version, state in self.states.get(name, {}).items():
            if state == "READY":
                self._end(name, version)

    def ready(self, name: str) -> set[int]:
        return {of for of, state in self.states.get(name, {}).items() if state == "READY"}

    def says_ready(self, name: str, version: int) -> bool:
        return bool(_options(self.repository / name, version).get("is_ready", True))

    def _load_own(self, name: str) -> None:
        folder = self.repository / name
        config = (folder / "config.pbtxt").read_bytes()
        numbers = [int(path.name) for path in folder.iterdir() if is_version(path.name)]
        wanted = served_by(config, numbers)
        states = self.states.setdefault(name, {})
        failed = {version: text for version in wanted if (text := _failure(folder, version))}
        for version, text in failed.items():
            if states.get(version) != "READY":
                states[version] = "UNAVAILABLE"
                self.reasons.setdefault(name, {})[version] = f"Internal: {text}"
        if failed:
            version, text = failed.popitem()
            where = f"version {version} is at UNAVAILABLE state"
            raise LoadError(f"load failed for model '{name}': {where}: Internal: {text}; ")
        for version in set(states) - wanted:
            if states[version] == "READY":
                self._end(name, version)
        states.update(dict.fromkeys(wanted, "READY"))
        self.configs[name] = model_config.as_dict(model_config.parse(config.decode()))

    def _end(self, name: str, version: int) -> None:
        self.states[name][version] = "UNLOADING"
        self._release()

    def _release(self) -> None:
        """Unloads versions that have no requests any more."""
        for name, states in self.states.items():
            for version, state in states.items():
                if state == "UNLOADING" and name not in self.held:
                    states[version] = "UNAVAILABLE"
                    self.reasons.setdefault(name, {})[version] = "unloaded"


def _options(folder: Path, version: int) -> dict[str, Any]:
    file = folder / str(version) / "model.json"
    values = json.loads(file.read_text()) if file.exists() else {}
    return dict(values.get("options", {}))


def _failure(folder: Path, version: int) -> str:
    reason = _options(folder, version).get("fail")
    return f"RuntimeError: {reason}" if reason else ""


class ControlHandler(Handler, BaseHTTPRequestHandler):
    """Requests come on threads of their own, and are answered one after the other."""

    triton: FakeTriton
    lock: ClassVar[threading.Lock]

    def do_GET(self) -> None:
        with self.lock:
            self._get()

    def do_POST(self) -> None:
        with self.lock:
            self._post()

    def _get(self) -> None:
        parts = self._parts()
        triton = self.triton
        if self.path == "/metrics":
            self._answer(200, triton.metrics)
        elif parts[:1] == ["models"] and parts[-1] == "config" and triton.ready(parts[1]):
            self._answer(200, triton.configs[parts[1]])
        elif parts[:1] == ["models"] and parts[-1] == "ready":
            wanted = {int(parts[3])} if parts[2] == "versions" else triton.ready(parts[1])
            ready = wanted and wanted <= triton.ready(parts[1])
            ready = ready and all(triton.says_ready(parts[1], version) for version in wanted)
            self._answer(200 if ready else 400, {} if ready else {"error": "not ready"})
        else:
            self._answer(404, {"error": "unknown"})

    def _post(self) -> None:
        parts = self._parts()
        if parts == ["repository", "index"]:
            self._answer(200, self.triton.index())
        else:
            self._control(parts[2], parts[3])

    def _control(self, name: str, action: str) -> None:
        try:
            (self.triton.load if action == "load" else self.triton.unload)(name)
        except LoadError as error:
            self._answer(400, {"error": str(error)})
        else:
            self._answer(200, {})

    def _parts(self) -> list[str]:
        return [urllib.parse.unquote(part) for part in self.path.split("/")[2:]]

    def _answer(self, status: int, body: object) -> None:
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.answer(status, data)


def _load_over_http(api: ServerApi, name: str) -> str | None:
    """The fake has no gRPC."""
    url = f"http://127.0.0.1:{api.listen.http_port}/v2/repository/models/{name}/load"
    answer = post(url, b"")
    return None if answer.status == 200 else one_line(answer.body["error"])


@contextlib.contextmanager
def listening(triton: FakeTriton) -> Iterator[FakeTriton]:
    """The fake behind a port of its own, ``triton.port``."""
    handler = type("Handler", (ControlHandler,), {"triton": triton, "lock": threading.Lock()})
    over_http = patch.object(ServerApi, "load", _load_over_http)
    with over_http, serving_http(handler) as triton.port:
        yield triton
