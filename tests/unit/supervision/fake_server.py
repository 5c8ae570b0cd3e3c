"""A server with models and processes, as Triton 24.10 has them: one that died still counts as
ready, and a model is told to be unloading before its processes end.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, cast

from hf_triton.serving.supervision.stub_deaths import StubDeaths
from hf_triton.tritonserver.http_api import ModelVersion, ServerApi
from hf_triton.tritonserver.stubs import End, Stub, StubEnds


@dataclass
class FakeEnds:
    """Each process ended like this."""

    end: End

    def how(self, pid: int) -> End:
        return self.end

    def last_of(self, models: Collection[str], since_s: float) -> End:
        return self.end


class FakeServer:
    """Every model has version 1 and ``counts`` processes, one where it is not named there."""

    def __init__(self, *models: str, counts: dict[str, int] | None = None) -> None:
        self.counts = counts or {}
        self.configs: dict[str, dict[str, Any]] = {}
        self.states: dict[str, str] = {}
        self.stubs: set[Stub] = set()
        self.calls: list[str] = []
        self.refusals: dict[str, list[str]] = {}  # model -> why its next loads fail
        self.unready: set[str] = set()
        self.is_reachable = True
        self.num_asked = 0
        self._numbers = itertools.count(1000)
        for model in models:
            self.load(model)
        self.calls.clear()

    def find(self) -> set[Stub]:
        return set(self.stubs)

    def alive(self, stubs: Iterable[Stub]) -> set[Stub]:
        return self.stubs & set(stubs)

    def pids(self, model: str) -> list[int]:
        return sorted(stub.pid for stub in self.stubs if stub.model == model)

    def kill(self, model: str, num: int = 1) -> None:
        for pid in self.pids(model)[:num]:
            self.stubs.remove(Stub(model, "1", pid))

    def index(self) -> list[ModelVersion]:
        self._reach()
        self.num_asked += 1
        return [ModelVersion(name, "1", state, "") for name, state in self.states.items()]

    def ready_versions(self) -> list[tuple[str, str]]:
        return [(one.model, one.version) for one in self.index() if one.state == "READY"]

    def model_config(self, name: str, version: str = "") -> dict[str, Any] | None:
        self._reach()
        groups = [{"count": self.counts.get(name, 1), "kind": "KIND_CPU"}]
        found = {"backend": "python", "instance_group": groups, **self.configs.get(name, {})}
        return found if self.states.get(name) == "READY" else None

    def is_model_ready(self, name: str, version: str = "") -> bool:
        self._reach()
        return name not in self.unready

    def load(self, name: str) -> str | None:
        self._reach()
        self.calls.append(f"load {name}")
        if self.refusals.get(name):
            self.states[name] = "UNAVAILABLE"
            return self.refusals[name].pop(0)
        self.states[name] = "READY"
        if self.configs.get(name, {}).get("backend", "python") == "python":
            for _ in range(self.counts.get(name, 1)):
                self.stubs.add(Stub(name, "1", next(self._numbers)))
        return None

    def unload(self, name: str) -> str | None:
        self._reach()
        self.calls.append(f"unload {name}")
        self.states[name] = "UNAVAILABLE"
        self.kill(name, len(self.pids(name)))
        return None

    def _reach(self) -> None:
        if not self.is_reachable:
            raise ConnectionRefusedError


def deaths_of(server: FakeServer, ends: FakeEnds | None = None) -> StubDeaths:
    """Follows the server's processes."""
    how = cast(StubEnds, ends or FakeEnds(End()))
    return StubDeaths(cast(ServerApi, server), server.find, how, server.alive)
