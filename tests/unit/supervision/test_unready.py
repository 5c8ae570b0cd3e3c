"""Models that say that they are not ready."""

from __future__ import annotations

from hf_triton.serving.supervision.hang_detection.unready_models import UnreadyModels
from tests.unit.supervision.fake_server import FakeServer

ROLES = {"engine": "engine", "front": "front", "whole": "whole"}


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def clinic() -> tuple[FakeServer, Clock, UnreadyModels]:
    server, clock = FakeServer(*ROLES, "foreign"), Clock()
    for name, role in ROLES.items():
        server.configs[name] = {"parameters": {"hf_triton_role": {"string_value": role}}}
    return server, clock, UnreadyModels(server, clock)


def test_only_what_says_so_for_a_minute_and_computes_itself_is_hopeless() -> None:
    server, clock, unready = clinic()
    server.unready = {"engine", "front", "foreign"}
    unready.ask(server.states)
    assert unready.folders == {"engine", "front", "foreign"}
    clock.now_s += 60
    unready.ask(server.states)
    assert unready.overdue() == []
    clock.now_s += 1
    assert unready.overdue() == ["engine"]
    assert unready.overdue() == [], "not at once again"


def test_one_good_answer_in_between_begins_anew() -> None:
    server, clock, unready = clinic()
    server.unready = {"whole"}
    unready.ask(server.states)
    clock.now_s += 50
    server.unready = set()
    unready.ask(server.states)
    server.unready = {"whole"}
    unready.ask(server.states)
    clock.now_s += 50
    assert unready.overdue() == []


def test_one_that_is_unloaded_or_does_not_answer_says_nothing() -> None:
    server, clock, unready = clinic()
    server.unready = {"whole", "engine"}
    unready.ask(server.states)
    unready.ask(["engine"])
    assert unready.folders == {"engine"}
    server.is_reachable = False
    unready.ask(["engine"])
    clock.now_s += 100
    assert unready.overdue() == []


def test_one_that_says_so_with_its_heartbeat_need_not_be_asked_by_triton() -> None:
    server, clock, unready = clinic()
    unready.ask(server.states, {"engine"})
    assert unready.folders == {"engine"}
    clock.now_s += 61
    unready.ask(server.states, {"engine"})
    assert unready.overdue() == ["engine"]
    unready.ask(server.states)
    assert unready.folders == set()
