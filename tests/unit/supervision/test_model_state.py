"""Sequences of events, as kills, applies, requests and a dying tritonserver make them, replayed."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from hf_triton.tritonserver.model_state import (
    TRANSITIONS,
    Cause,
    Event,
    ModelState,
    ModelStates,
    Seen,
    State,
)

PAGE = Path(__file__).parents[3] / "docs" / "architecture.md"
READY, LOADING, AWAY = Seen(is_ready=True), Seen(is_loading=True), Seen(reason="m is UNAVAILABLE")
Step = Callable[[ModelState], object]


def load(model: ModelState) -> None:
    model.load()


def ready(model: ModelState) -> None:
    model.ready()


def fails(cause: Cause = Cause.LOAD_FAILED) -> Step:
    return lambda model: model.load_failed(cause, "no weights")


def dies(model: ModelState) -> None:
    model.died(Cause.CRASHED, "its Python process died (exit code 3)")
    model.count_death()


def leave(model: ModelState) -> None:
    model.leave()


def stays(model: ModelState) -> None:
    model.stays()


def unloaded(model: ModelState) -> None:
    model.unloaded()


def server_dies(model: ModelState) -> None:
    model.server_ended()


def seen(what: Seen) -> Step:
    return lambda model: model.see(what)


SERVED: tuple[Step, ...] = (load, ready)
GIVEN_UP: tuple[Step, ...] = (*SERVED, dies, *[fails()] * 3)
STORIES: dict[str, tuple[tuple[Step, ...], State, int]] = {
    "nobody has asked for it": ((), State.ASLEEP, 0),
    "it loads": ((load,), State.LOADING, 0),
    "it is loaded": (SERVED, State.READY, 1),
    "its first load fails": ((load, fails()), State.FAILED, 0),
    "its process dies once in its first load": ((load, fails(Cause.DIED)), State.LOADING, 0),
    "and again": ((load, *[fails(Cause.OUT_OF_MEMORY)] * 2), State.FAILED, 0),
    "somebody kills its first loads": ((load, *[fails(Cause.KILLED)] * 99), State.LOADING, 0),
    "an apply corrects it": ((load, fails(), seen(LOADING), seen(READY)), State.READY, 1),
    "an apply does not": ((load, fails(), seen(LOADING), seen(AWAY)), State.FAILED, 0),
    "a request on demand tries again": ((load, fails(), load, fails(Cause.DIED)), State.LOADING, 0),
    "its process dies": ((*SERVED, dies), State.HEALING, 1),
    "it is healed": ((*SERVED, dies, ready), State.READY, 2),
    "it dies for ever": ((*SERVED, *[dies, ready] * 50), State.READY, 51),
    "it dies before anybody looked": ((dies, ready), State.READY, 2),
    "it does not come back": (GIVEN_UP, State.GIVEN_UP, 1),
    "nobody touches it then": ((*GIVEN_UP, seen(AWAY)), State.GIVEN_UP, 1),
    "kills are no failures": ((*SERVED, dies, *[fails(Cause.KILLED)] * 99), State.HEALING, 1),
    "nor failures forgiven by them": (
        (*SERVED, dies, fails(), *[fails(Cause.KILLED), fails()] * 2),
        *(State.GIVEN_UP, 1),
    ),
    "an apply loads what was given up": ((*GIVEN_UP, seen(LOADING)), State.HEALING, 1),
    "and it is back": ((*GIVEN_UP, seen(LOADING), seen(READY)), State.READY, 2),
    "or not": ((*GIVEN_UP, seen(LOADING), seen(AWAY)), State.GIVEN_UP, 1),
    "a request on demand loads it": ((*GIVEN_UP, load, fails()), State.HEALING, 1),
    "what Triton says of a dead one": ((*SERVED, dies, seen(READY)), State.HEALING, 1),
    "or of one that is unloaded first": ((*SERVED, dies, seen(AWAY)), State.HEALING, 1),
    "somebody unloads it": ((*SERVED, seen(AWAY)), State.ASLEEP, 1),
    "somebody loads it anew": ((*SERVED, seen(LOADING)), State.LOADING, 1),
    "it is unloaded for others": ((*SERVED, leave), State.LEAVING, 1),
    "and is gone": ((*SERVED, leave, unloaded), State.ASLEEP, 1),
    "and is asked for again": ((*SERVED, leave, unloaded, load, ready), State.READY, 2),
    "what Triton says of one that goes": ((*SERVED, leave, seen(AWAY)), State.LEAVING, 1),
    "Triton does not unload it": ((*SERVED, leave, stays), State.READY, 2),
    "it was unloaded before that was known": ((*SERVED, leave, unloaded, stays), State.ASLEEP, 1),
    "the server dies meanwhile": ((*SERVED, leave, server_dies, unloaded), State.ASLEEP, 1),
    "and its new one has none": ((*SERVED, leave, server_dies, seen(AWAY)), State.ASLEEP, 1),
    "one that heals is not unloaded": ((*SERVED, dies, leave), State.HEALING, 1),
    "a reload in the background": ((*SERVED, seen(READY), seen(READY)), State.READY, 1),
    "the server dies": ((*SERVED, server_dies), State.HEALING, 1),
    "and all is loaded": ((*SERVED, server_dies, load, ready), State.READY, 2),
    "the server dies while it heals": ((*SERVED, dies, server_dies, load), State.HEALING, 1),
    "a new server tries what failed": ((load, fails(), server_dies), State.LOADING, 0),
    "a new server tries what was given up": ((*GIVEN_UP, server_dies), State.HEALING, 1),
    "a server without what sleeps": ((server_dies,), State.ASLEEP, 0),
}


@pytest.mark.parametrize("story", STORIES)
def test_a_story_ends_as_the_table_says(story: str) -> None:
    steps, state, generation = STORIES[story]
    model = ModelStates(2)["m"]
    for step in steps:
        step(model)
    assert (model.state, model.generation) == (state, generation)
    assert (model.reason == "") is (state is State.READY)


@pytest.mark.parametrize(
    "steps, waits",
    [
        ((load,), False),
        ((load, fails()), False),
        ((load, *[fails(Cause.KILLED)] * 5), True),
        ((load, fails(Cause.DIED)), True),
        ((load, *[fails(Cause.DIED)] * 2), False),
        ((load, fails(), server_dies), False),
        ((*SERVED, dies, *[fails(Cause.KILLED)] * 5), True),
        ((*SERVED, seen(LOADING)), True),
        (GIVEN_UP, False),
        ((*GIVEN_UP, seen(LOADING)), True),
    ],
)
def test_requests_wait_for_what_is_tried_again(steps: tuple[Step, ...], waits: bool) -> None:
    model = ModelStates(2)["m"]
    for step in steps:
        step(model)
    assert model.is_coming_back is waits


def test_every_state_is_left_and_every_one_can_become_ready() -> None:
    assert {state for state, _ in TRANSITIONS} == set(TRANSITIONS.values()) == set(State)
    for state in set(State) - {State.READY}:
        assert TRANSITIONS[state, Event.READY] is State.READY


def test_an_answer_from_before_a_load_does_not_count() -> None:
    states = ModelStates()
    states["m"].load()
    since = states.num_changes
    states["m"].ready()
    states.see({"m": AWAY}, since)
    assert states["m"].state is State.READY
    states.see({}, states.num_changes)
    assert (states["m"].state, states["m"].reason) == (State.ASLEEP, "is not loaded")


def test_the_last_death_is_that_of_the_model_or_of_the_server() -> None:
    states = ModelStates()
    assert states.last_death(["m"]).cause is Cause.NONE
    dies(states["m"])
    assert states.last_death(["m", "n"]).cause is Cause.CRASHED
    states.server_died(Cause.KILLED, "tritonserver died (killed by SIGKILL)")
    assert states.last_death(["m"]).cause is Cause.KILLED
    dies(states["m"])
    assert states.last_death(["m"]).cause is Cause.CRASHED
    assert states.last_death(["n"]).cause is Cause.KILLED
    assert (states["m"].num_deaths, states.num_server_deaths) == (2, 1)


def test_a_front_and_its_engine_are_tried_again_together() -> None:
    states = ModelStates()
    for folder in ("f_stream", "f"):
        states[folder].load()
    assert states.load_failed(["f_stream", "f"], Cause.KILLED, "killed by SIGKILL") == 0
    assert {one.is_coming_back for one in states.of(["f_stream", "f"])} == {True}
    assert states["f_stream"].told == "failed to load: killed by SIGKILL"


def test_parts_of_an_entry_are_lost_together_but_those_that_are_ready() -> None:
    states = ModelStates(0)
    for folder in ("tokens", "model", "e"):
        states[folder].load()
    states["tokens"].ready()
    assert states.load_failed(["tokens", "model", "e"], Cause.LOAD_FAILED, "no weights") is None
    assert [one.state for one in states.of(["tokens", "model", "e"])] == [
        *(State.READY, State.FAILED, State.FAILED),
    ]


def test_the_chart_in_the_docs_is_that_of_the_table() -> None:
    drawn = [
        f"    {before.name} --> {after.name}: {event.value}"
        for (before, event), after in TRANSITIONS.items()
    ]
    chart = "\n".join(["```mermaid", "stateDiagram-v2", "    [*] --> ASLEEP", *drawn, "```"])
    found = re.search(r"```mermaid\nstateDiagram-v2.*?```", PAGE.read_text("utf-8"), re.DOTALL)
    assert found, f"not in {PAGE.name}"
    assert found[0] == chart, f"put this into {PAGE.name}:\n{chart}"
