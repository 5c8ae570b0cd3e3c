"""Tells processes that died from those that were unloaded."""

from __future__ import annotations

import pytest

from hf_triton.runtime.devices.device import num_instances
from hf_triton.serving.supervision.stub_deaths import StubDeaths
from hf_triton.tritonserver.model_state import Cause
from hf_triton.tritonserver.stubs import End, Stub
from tests.unit.supervision.fake_server import FakeEnds, FakeServer, deaths_of


def watched(server: FakeServer, end: End | None = None) -> StubDeaths:
    deaths = deaths_of(server, FakeEnds(end or End()))
    deaths.look(sweep=True)
    return deaths


def test_a_process_that_vanishes_from_a_ready_version_has_died() -> None:
    server = FakeServer("a", "b")
    deaths = watched(server, End(Cause.KILLED, "killed by SIGKILL"))
    server.kill("a")
    (death,) = deaths.look()
    assert (death.folder, death.version, death.survivors) == ("a", "1", frozenset())
    assert death.reason == "its Python process died (killed by SIGKILL)"
    assert death.cause is Cause.KILLED
    assert deaths.is_dead(death)


def test_nothing_is_asked_while_nothing_changes() -> None:
    server = FakeServer("a")
    deaths = watched(server)
    asked = server.num_asked
    assert [deaths.look() for _ in range(9)] == [[]] * 9
    assert server.num_asked == asked


def test_one_of_several_instances_counts() -> None:
    server = FakeServer("a", counts={"a": 3})
    deaths = watched(server)
    server.kill("a")
    (death,) = deaths.look()
    assert sorted(death.survivors) == server.pids("a")
    assert len(death.survivors) == 2


def test_an_unload_by_somebody_is_no_death() -> None:
    server = FakeServer("a", "b")
    deaths = watched(server)
    server.unload("a")
    assert deaths.look() == []
    server.states["b"] = "UNLOADING"
    server.kill("b")
    assert deaths.look() == []
    assert deaths.look(sweep=True) == []


def test_a_reload_by_somebody_between_two_looks_is_no_death() -> None:
    server = FakeServer("a")
    deaths = watched(server)
    server.unload("a")
    server.load("a")
    assert deaths.look() == []


def test_a_death_that_somebody_has_healed_meanwhile_is_none_any_more() -> None:
    server = FakeServer("a")
    deaths = watched(server)
    server.kill("a")
    (death,) = deaths.look()
    server.unload("a")
    assert not deaths.is_dead(death)
    server.load("a")
    assert not deaths.is_dead(death)


def test_one_that_died_before_it_was_ever_seen_is_found_by_a_sweep() -> None:
    server = FakeServer("a")
    server.kill("a")
    deaths = watched(server)
    (death,) = deaths.look(sweep=True)
    assert death.folder == "a"


def test_one_that_died_while_the_others_were_loading_is_found_by_a_sweep() -> None:
    server = FakeServer("a", counts={"a": 2})
    server.states["a"] = "LOADING"
    deaths = watched(server)
    server.kill("a")
    assert deaths.look() == []
    server.states["a"] = "READY"
    assert [death.folder for death in deaths.look(sweep=True)] == ["a"]


def test_fewer_instances_by_a_changed_config_are_no_death() -> None:
    server = FakeServer("a", counts={"a": 2})
    deaths = watched(server)
    server.counts["a"] = 1
    server.kill("a")
    assert deaths.look() == []


def test_models_of_other_backends_have_no_processes_to_lose() -> None:
    server = FakeServer()
    server.configs["native"] = {"backend": "onnxruntime"}
    server.load("native")
    assert watched(server).look(sweep=True) == []


def test_a_server_that_does_not_answer_hides_no_death() -> None:
    server = FakeServer("a")
    deaths = watched(server)
    server.kill("a")
    server.is_reachable = False
    assert deaths.look() == []
    server.is_reachable = True
    assert [death.folder for death in deaths.look()] == ["a"]


def test_another_version_of_the_model_does_not_make_up_for_it() -> None:
    server = FakeServer("a")
    deaths = watched(server)
    server.kill("a")
    server.stubs.add(Stub("a", "2", 5))
    assert [death.version for death in deaths.look(sweep=True)] == ["1"]


@pytest.mark.parametrize(
    "groups,expected",
    [
        ([], 1),
        ([{"count": 3}], 3),
        ([{"count": 2, "gpus": [0, 1]}, {"count": 1, "kind": "KIND_CPU"}], 5),
    ],
)
def test_every_gpu_of_a_group_has_its_instances(groups: list[object], expected: int) -> None:
    assert num_instances({"instance_group": groups}) == expected
