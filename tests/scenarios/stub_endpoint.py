"""The endpoint of the scenarios that needs no server: every model in this process."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from stub_server import Pending, StubServer
from wire import Reply, Request

from hf_triton.runtime.link import protocol
from hf_triton.runtime.metrics import publishing

_REPOSITORY_NUMBERS = itertools.count(1)
PUBLISH_EVERY_S = 0.1  # a real model's metrics: 1 s


class StubEndpoint:
    """The models of a generated repository, each loaded when it is first asked.

    A front's engine is loaded with it: they find each other as in a server, by a name that all of
    one server's processes know, which here is the repository's number.
    """

    settled_s = 5 * PUBLISH_EVERY_S

    def __init__(self, repository: Path) -> None:
        publishing.PUBLISH_EVERY_S = PUBLISH_EVERY_S
        self._repository = repository
        self._server_identity = f"stub-{os.getpid()}-{next(_REPOSITORY_NUMBERS)}"
        self._models: dict[str, StubServer] = {}

    def model(self, name: str) -> StubServer:
        """The stub server of one model."""
        if name not in self._models:
            self._load(name)
        return self._models[name]

    def _load(self, name: str) -> None:
        folder = self._repository / name
        values = json.loads((folder / "1" / "model.json").read_text(encoding="utf-8"))
        if "engine" in values:
            self.model(values["engine"])
        server = StubServer(folder)
        self.load(server)
        self._models[name] = server

    def load(self, server: StubServer) -> None:
        """Loads a model where the others of this repository find it."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(protocol, "server_identity", lambda: self._server_identity)
            server.load()

    def close(self) -> None:
        """Unloads what is loaded, fronts before their engines."""
        for name in reversed(self._models):
            self._models[name].unload()
        self._models.clear()

    def infer(self, model: str, request: Request) -> Reply:
        return self.model(model).infer(request)

    def infer_together(self, model: str, requests: Sequence[Request]) -> list[Reply]:
        """One ``execute`` for all of them, as Triton's dynamic batcher hands them over."""
        return [pending.reply() for pending in self.model(model).send_together(requests)]

    def generate(self, model: str, body: Mapping[str, Any] | bytes) -> tuple[int, dict[str, Any]]:
        return self.model(model).generate(body)

    def generate_stream(
        self, model: str, body: Mapping[str, Any] | bytes
    ) -> tuple[int, list[dict[str, Any]]]:
        return self.model(model).generate_stream(body)

    def stream(self, model: str, request: Request) -> list[Reply]:
        return list(self.model(model).stream(request))

    def stream_together(self, model: str, requests: Sequence[Request]) -> list[list[Reply]]:
        return [list(pending.replies()) for pending in self.model(model).send_together(requests)]

    @contextlib.contextmanager
    def left_stream(self, model: str, request: Request) -> Iterator[Reply]:
        pending = self.model(model).send(request)
        yield next(pending.replies())
        _cancel(pending)

    @contextlib.contextmanager
    def cancelled_infer(self, model: str, request: Request) -> Iterator[Callable[[], bool]]:
        pending = self.model(model).send(request)
        yield lambda: pending.is_answered
        _cancel(pending)


@contextlib.contextmanager
def serving_stub(folder: Path, models_yaml: str | list[dict[str, Any]]) -> Iterator[StubEndpoint]:
    """The models of a models.yaml, or of its entries; each is loaded when it is first asked."""
    from hf_triton.cli.verbs.generate import generate

    text = models_yaml if isinstance(models_yaml, str) else json.dumps({"models": models_yaml})
    (folder / "models.yaml").write_text(text, encoding="utf-8")  # JSON is YAML
    generate(folder / "models.yaml", folder / "model_repository")
    stub = StubEndpoint(folder / "model_repository")
    try:
        yield stub
    finally:
        stub.close()


def _cancel(pending: Pending) -> None:
    """Cancels, and sees to it that the model lets go of the request: it owes its FINAL flag."""
    pending.cancel()
    assert pending.wait_finished(), "the model still holds a request that was cancelled"
    assert not pending.faults, pending.faults
