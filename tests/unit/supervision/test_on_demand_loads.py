"""Loads on demand, on a server without processes: requests, failures, evictions."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from generator.models_yaml.server_settings import OnDemand
from generator.repository.writing import locked_model
from generator.spec.triton_models import IDLE_PARAMETER, LOAD_PARAMETER
from hf_triton.serving.supervision.model_loader import ModelLoader
from hf_triton.serving.supervision.on_demand.control import OnDemandModels
from hf_triton.serving.supervision.served_models import ServedModels
from hf_triton.tritonserver.listen import Listen
from hf_triton.tritonserver.model_state import ModelStates, State
from hf_triton.tritonserver.process import TritonServer
from tests.support.triton import eventually
from tests.unit.supervision.fake_server import FakeServer, deaths_of

WAITS: Mapping[str, tuple[int, int, int]] = {"a": (1, 0, 0)}


@dataclasses.dataclass
class Server:
    """The parts of a TritonServer that loads on demand use."""

    api: FakeServer
    pid: int = 1
    listen: Listen = dataclasses.field(default_factory=Listen)


class Home:
    """One model that is loaded on demand, and may go when nobody asks it for a second."""

    def __init__(self, repository: Path) -> None:
        self.repository = repository
        (repository / "a").mkdir()
        keys = {LOAD_PARAMETER: "on_demand", IDLE_PARAMETER: "1"}
        lines = [
            f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'
            for key, value in keys.items()
        ]
        (repository / "a" / "config.pbtxt").write_text("".join(lines))
        self.triton, self.states, self.said = FakeServer(), ModelStates(), list[str]()
        api: Any = self.triton
        api.metrics = str
        served = ServedModels(repository, ["a"])
        loader = ModelLoader(api, deaths_of(self.triton), served, self.states, self.said.append)
        server = cast(TritonServer, Server(self.triton))
        self.models = OnDemandModels(
            *(server, served, loader, self.states, OnDemand(memory_gib=1.0), self.said.append)
        )

    def becomes(self, state: str, demand: Mapping[str, tuple[int, int, int]]) -> bool:
        def is_so() -> bool:
            self.models.look(dict(demand), may_begin=True)
            return self.models.models["a"].residence == state

        return eventually(is_so, 20)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def test_a_request_loads_a_model_again_each_time_after_it_was_idle(home: Home) -> None:
    for _ in range(2):
        assert home.becomes("loaded", WAITS)
        assert home.becomes("asleep", {})
        assert home.states["a"].state is State.ASLEEP, "a load that begins now is not over"
    assert home.triton.calls == ["load a", "unload a"] * 2
    assert home.models.models["a"].num_loads == 2


def test_one_that_triton_does_not_unload_is_there_still(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert home.becomes("loaded", WAITS)
    asked: list[str] = []

    def refuse(name: str) -> str:
        asked.append(name)
        return "not now"

    monkeypatch.setattr(home.triton, "unload", refuse)
    assert home.becomes("leaving", {})
    assert home.becomes("loaded", {})
    assert asked == ["a"]
    with locked_model(home.repository / "a", 20):
        pass


def test_a_failed_load_is_told_to_those_who_wait_and_tried_again_later(home: Home) -> None:
    home.triton.refusals["a"] = ["no weights"]
    home.models.look(dict(WAITS), may_begin=True)
    assert eventually(lambda: home.states["a"].state is State.FAILED)
    home.models.look(dict(WAITS), may_begin=True)
    told = home.models.for_ports("a")
    assert told is not None
    assert (told.failure, told.retry_s) == ("no weights", 5)
    assert "model 'a' failed to load: no weights" in home.said
    home.models.models["a"].retry_at_s = 0.0
    assert home.becomes("loaded", WAITS)


def test_a_load_waits_until_whoever_changes_the_model_is_done(home: Home) -> None:
    with locked_model(home.repository / "a"):
        assert home.becomes("loading", WAITS)
        assert home.triton.calls == []
    assert home.becomes("loaded", WAITS)
