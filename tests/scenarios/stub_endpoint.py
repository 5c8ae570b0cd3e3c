"""The endpoint of the scenarios that needs no server: every model in this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stub_server import StubServer
from wire import Reply, Request


class StubEndpoint:
    """The models of a generated repository, each loaded when it is first asked."""

    def __init__(self, repository: Path) -> None:
        self._repository = repository
        self._models: dict[str, StubServer] = {}

    def model(self, name: str) -> StubServer:
        """The stub server of one model."""
        if name not in self._models:
            server = StubServer(self._repository / name)
            server.load()
            self._models[name] = server
        return self._models[name]

    def close(self) -> None:
        """Unloads what is loaded."""
        for server in self._models.values():
            server.unload()
        self._models.clear()

    def infer(self, model: str, request: Request) -> Reply:
        return self.model(model).infer(request)

    def infer_together(self, model: str, requests: Sequence[Request]) -> list[Reply]:
        """One ``execute`` for all of them, as Triton's dynamic batcher hands them over."""
        return [pending.reply() for pending in self.model(model).send_together(requests)]

    def generate(self, model: str, body: Mapping[str, Any] | bytes) -> tuple[int, dict[str, Any]]:
        return self.model(model).generate(body)
