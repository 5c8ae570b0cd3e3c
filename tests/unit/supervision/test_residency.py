"""Which models are in memory is decided on a clock of the test's own, and done on a fake server."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from generator.models_yaml.server_settings import OnDemand
from generator.repository.writing import locked_model
from generator.spec.triton_models import IDLE_PARAMETER, LOAD_PARAMETER
from hf_triton.serving.supervision.model_loader import ModelLoader
from hf_triton.serving.supervision.on_demand.control import OnDemandModels
from hf_triton.serving.supervision.on_demand.residency import Demand, Residency
from hf_triton.serving.supervision.served_models import ServedModels
from hf_triton.tritonserver.listen import Listen
from hf_triton.tritonserver.model_state import Cause, ModelStates, State
from hf_triton.tritonserver.process import TritonServer
from tests.support.triton import eventually
from tests.unit.supervision.fake_server import FakeServer, deaths_of

GIB = 2**30
WAITS, RUNS = Demand(waiting=1), Demand(running=1, num_sent=1)


class World:
    """Models of one GiB each, and a server that loads one of them in ``load_s``."""

    def __init__(
        self, budget_gib: float, *names: str, max_loads: int = 1, idle_s: float | None = None
    ) -> None:
        self.now = 1000.0
        self.sizes: dict[str, dict[str, float]] = {name: {"cpu": float(GIB)} for name in names}
        self.load_s = 2.0
        self.loads: list[str] = []
        self.evicted: list[str] = []
        self.said: list[str] = []
        self.demands: dict[str, Demand] = {}
        self.ends: dict[str, float] = {}
        self.folders = ModelStates(clock=lambda: self.now)
        self.residency = Residency(
            *(max_loads, lambda name: [self.folders[name]]),
            *(self.sizes.__getitem__, lambda: {"cpu": budget_gib * GIB}),
            load=self._begin_load,
            evict=self._begin_unload,
            say=self.said.append,
            clock=lambda: self.now,
        )
        self.residency.set_entries(dict.fromkeys(names, idle_s))

    def _begin_load(self, name: str) -> None:
        self.loads.append(name)
        self.folders[name].load()
        self.ends[name] = self.now + self.load_s

    def _begin_unload(self, name: str) -> None:
        self.evicted.append(name)
        self.folders[name].leave()
        self.ends[name] = self.now + 0.5

    def run(self, seconds: float, **demands: Demand) -> None:
        """Lets time pass with these requests, a quarter of a second at a time."""
        self.demands = demands
        for _ in range(round(seconds * 4)):
            for name, ends_s in list(self.ends.items()):
                if ends_s <= self.now:
                    del self.ends[name]
                    folder = self.folders[name]
                    if folder.state is State.LEAVING:
                        folder.unloaded()
                    else:
                        folder.ready()
            self.residency.look()
            self.residency.set_demands(self.demands)
            self.residency.decide()
            self.now += 0.25

    def load(self, *names: str) -> None:
        """Each of these is asked and loaded, one after the other."""
        for name in names:
            self.run(self.load_s + 1, **{name: WAITS})
            self.run(3)
            assert self.states[name] == "loaded"

    @property
    def states(self) -> Mapping[str, str]:
        return {name: model.residence for name, model in self.residency.models.items()}


def test_a_model_is_loaded_when_it_is_asked_and_stays() -> None:
    world = World(3, "a", "b")
    world.run(10)
    assert world.loads == []

    world.run(5, a=WAITS)
    world.run(1000)
    assert world.loads == ["a"]
    assert world.states == {"a": "loaded", "b": "asleep"}


def test_the_one_that_nobody_has_asked_longest_makes_room() -> None:
    world = World(2, "a", "b", "c")
    world.load("a", "b")
    world.run(1, a=RUNS)
    world.load("c")
    assert world.evicted == ["b"]


def test_what_is_asked_is_not_evicted_before_it_has_stayed_a_while() -> None:
    world = World(1, "a", "b")
    world.load("a")
    world.residency.models["a"].loaded_at_s = world.now
    busy = {"a": RUNS, "b": WAITS}
    world.run(4, **busy)
    assert world.evicted == []
    assert not world.residency.models["a"].closed

    world.run(6, **busy)  # four times as long as a load takes
    assert world.residency.models["a"].closed, "its new requests wait"
    assert world.evicted == [], "it answers those that it has"
    world.run(1, b=WAITS, a=WAITS)
    assert world.evicted == ["a"]
    world.run(4, b=WAITS, a=WAITS)
    assert world.states == {"a": "asleep", "b": "loaded"}


def test_two_that_do_not_fit_together_take_turns() -> None:
    world = World(1, "a", "b")
    for _ in range(120):
        asleep = {name: WAITS for name, state in world.states.items() if state != "loaded"}
        loaded = {
            name: WAITS if world.residency.models[name].closed else RUNS
            for name in world.states.keys() - asleep.keys()
        }
        world.run(0.5, **asleep, **loaded)
    assert 4 <= len(world.loads) <= 8, "each stays four times as long as it takes to load"
    assert all(one != two for one, two in itertools.pairwise(world.loads))


def test_the_first_in_line_is_loaded_before_those_that_would_fit_sooner() -> None:
    world = World(2, "a", "small", "large")
    world.sizes["large"] = {"cpu": 2.0 * GIB}
    world.load("a")
    world.run(0.5, a=RUNS, large=WAITS)
    world.run(20, a=WAITS, large=WAITS, small=WAITS)
    assert world.loads[:2] == ["a", "large"]


def test_a_closed_model_takes_requests_again_where_whoever_wanted_its_room_has_left() -> None:
    world = World(1, "a", "b")
    world.load("a")
    world.run(20, a=RUNS, b=WAITS)
    assert world.residency.models["a"].closed
    world.run(0.5, a=RUNS)
    assert not world.residency.models["a"].closed
    assert world.evicted == []


def test_nothing_is_evicted_for_what_can_never_fit() -> None:
    world = World(2, "a", "huge")
    world.sizes["huge"] = {"cpu": 3.0 * GIB}
    world.load("a")
    world.run(2, huge=WAITS)
    expected = (
        "it needs 3.00 GiB of cpu, and models that are loaded on demand may take 2.00 GiB together"
    )
    assert world.residency.models["huge"].failure == expected
    assert world.evicted == []
    assert world.loads == ["a"]


def test_a_failure_is_told_once_for_all_and_tried_again_after_a_growing_pause() -> None:
    world = World(2, "a")
    tries = []
    for _ in range(4 * 60):
        world.run(0.25, a=WAITS)
        if world.states["a"] == "loading":
            world.ends.clear()
            world.folders["a"].load_failed(Cause.LOAD_FAILED, "no such file")
            tries.append(world.now)
    pauses = [round(two - one) for one, two in itertools.pairwise(tries)]
    assert pauses == [5, 10, 20]
    assert world.residency.models["a"].failure == "no such file"
    world.run(40, a=WAITS)
    assert world.states["a"] == "loaded"
    assert world.residency.models["a"].num_failures == 0


def test_an_idle_model_goes_after_its_time() -> None:
    world = World(2, "a", idle_s=30)
    world.load("a")
    world.run(40, a=RUNS)
    assert world.evicted == []
    world.run(29)
    assert world.evicted == []
    world.run(3)
    assert world.states == {"a": "asleep"}
    assert world.residency.models["a"].num_evictions == {"idle": 1, "room": 0}


@pytest.mark.parametrize("most", [1, 2])
def test_so_many_are_loaded_at_once(most: int) -> None:
    world = World(9, "a", "b", "c", max_loads=most)
    world.run(1, a=WAITS, b=WAITS, c=WAITS)
    assert sorted(world.loads) == ["a", "b", "c"][:most]


def test_a_load_that_takes_long_keeps_no_other_from_loading() -> None:
    world = World(9, "a", "b")
    world.load_s = 300
    world.run(55, a=WAITS, b=WAITS)
    assert world.loads == ["a"]
    world.run(10, a=WAITS, b=WAITS)
    assert world.loads == ["a", "b"]


def test_what_others_load_and_unload_is_seen_and_what_heals_is_not_lost() -> None:
    world = World(2, "a")
    folder = world.folders["a"]
    for happens, state in (
        (folder.ready, "loaded"),
        (lambda: folder.died(Cause.KILLED, "its Python process died"), "loaded"),
        (folder.ready, "loaded"),
        (folder.unloaded, "asleep"),
        (lambda: folder.load(in_hand=False), "loading"),
        (lambda: folder.lost(Cause.LOAD_FAILED, "no such file"), "asleep"),
    ):
        happens()
        world.run(0.25)
        assert world.states == {"a": state}
    assert world.said == [], "whoever has loaded it knows"
    assert world.residency.models["a"].num_loads == 0


def test_what_makes_room_is_healed_first() -> None:
    world = World(1, "a", "b")
    world.load("a")
    world.run(20, a=RUNS, b=WAITS)
    world.folders["a"].died(Cause.CRASHED, "its Python process died")
    world.run(20, a=WAITS, b=WAITS)
    assert world.evicted == []
    world.folders["a"].ready()
    world.run(4, a=WAITS, b=WAITS)
    assert world.evicted == ["a"]
    assert world.states == {"a": "asleep", "b": "loaded"}


def test_what_triton_does_not_unload_takes_requests_again() -> None:
    world = World(2, "a", idle_s=5)
    world.load("a")
    while world.states["a"] == "loaded":
        world.run(0.25)
    assert world.states == {"a": "leaving"}
    world.ends.clear()
    world.folders["a"].stays()
    world.run(0.25)
    assert world.states == {"a": "loaded"}
    assert not world.residency.models["a"].closed


def test_what_was_given_up_is_loaded_for_the_next_request_after_the_pause() -> None:
    world = World(1, "a")
    world.load("a")
    world.folders["a"].died(Cause.CRASHED, "its Python process died")
    for _ in range(6):
        world.folders["a"].load_failed(Cause.LOAD_FAILED, "no such file")
    world.run(4, a=WAITS)
    failure = "no such file; given up after 6 failed loads in a row"
    assert world.residency.models["a"].failure == failure
    world.run(2, a=WAITS)
    assert world.states == {"a": "loading"}
    assert world.folders["a"].state is State.HEALING
    world.run(2, a=WAITS)
    assert world.states == {"a": "loaded"}
    assert world.loads == ["a", "a"]


def test_with_the_server_all_is_gone_and_who_still_waits_has_it_loaded_again() -> None:
    world = World(2, "a", "b")
    world.load("a", "b")
    world.folders.server_ended()
    for name in "ab":
        world.folders[name].unloaded()
    world.run(0.25)
    assert set(world.states.values()) == {"asleep"}
    world.run(3, b=WAITS)
    assert world.loads == ["a", "b", "b"]


def test_an_entry_that_is_gone_from_models_yaml_is_forgotten() -> None:
    world = World(2, "a", "b")
    world.residency.set_entries({"b": 5.0})
    assert list(world.residency.models) == ["b"]
    assert world.residency.models["b"].idle_s == 5.0


def test_room_is_made_while_another_one_loads() -> None:
    world = World(3, "a", "b", "c", "d")
    world.load("a", "b")
    world.run(1, c=WAITS, d=WAITS)
    assert world.loads == ["a", "b", "c"]
    assert world.evicted == ["a"]


ASKED: Mapping[str, tuple[int, int, int]] = {"a": (1, 0, 0)}


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
        assert home.becomes("loaded", ASKED)
        assert home.becomes("asleep", {})
        assert home.states["a"].state is State.ASLEEP, "a load that begins now is not over"
    assert home.triton.calls == ["load a", "unload a"] * 2
    assert home.models.models["a"].num_loads == 2


def test_one_that_triton_does_not_unload_is_there_still(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert home.becomes("loaded", ASKED)
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
    home.models.look(dict(ASKED), may_begin=True)
    assert eventually(lambda: home.states["a"].state is State.FAILED)
    home.models.look(dict(ASKED), may_begin=True)
    told = home.models.for_ports("a")
    assert told is not None
    assert (told.failure, told.retry_s) == ("no weights", 5)
    assert "model 'a' failed to load: no weights" in home.said
    home.models.models["a"].retry_at_s = 0.0
    assert home.becomes("loaded", ASKED)


def test_a_load_waits_until_whoever_changes_the_model_is_done(home: Home) -> None:
    with locked_model(home.repository / "a"):
        assert home.becomes("loading", ASKED)
        assert home.triton.calls == []
    assert home.becomes("loaded", ASKED)
