"""Requests shared among arms: every one answered exactly once, whatever an arm does."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hf_triton.runtime.errors import CancelledError, OverloadedError, RequestError
from hf_triton.runtime.request.request import Request
from hf_triton.runtime.request.request_parameters import Call
from tests.support.driving import Clock
from tests.support.intake_driver import Caller, Driver, driving, strings
from tests.support.link_engine import LinkEngine
from tests.support.triton import eventually

Other = partial(LinkEngine, name="demo_new")


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch, own_link: str) -> None:
    monkeypatch.setattr("hf_triton.runtime.routing.router.CHECK_EVERY_S", 0.02)
    monkeypatch.setattr("hf_triton.runtime.link.engine_pool.DISCOVER_EVERY_S", 0.05)


def shout(request: Request) -> None:
    """Answers in capitals, so that it shows which arm answered."""
    (text,) = request.inputs["text_input"].tolist()
    request.responder.send({"text_output": strings(text.decode().upper())}, final=True)


def write(folder: Path, *, sticky: str | None = None, **weights: float) -> None:
    """routing.json with the own arm ``stable``, and others at ``demo_<name>``."""
    arms = [
        {"name": name, "engine": "demo" if name == "stable" else f"demo_{name}", "weight": weight}
        for name, weight in weights.items()
    ]
    replace(folder, json.dumps({"arms": arms, "sticky": sticky}))


def replace(folder: Path, text: str) -> None:
    """routing.json, never seen half-written."""
    scratch = folder / "scratch"
    scratch.write_text(text)
    scratch.replace(folder / "routing.json")


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    """The model ``demo``, which answers its text as it is."""
    with driving(tmp_path) as driver:
        yield driver


def weights(driver: Driver) -> dict[str, float]:
    routing = driver.intake.router.routing
    return {} if routing is None else {a.name: float(a.weight) for a in routing.arms}


@contextmanager
def taken_by_other(
    driver: Driver, folder: Path, *, may_stream: bool = False
) -> Iterator[tuple[LinkEngine, Caller, Request]]:
    """Another arm, who asked, and the request as that arm has it, which is to be answered."""
    with Other() as other:
        route(driver, folder, stable=0, new=100)
        caller = driver.start("a", may_stream=may_stream)
        (taken,) = other.waits_for(1)
        yield other, caller, taken


def counted(driver: Driver) -> dict[tuple[str, str], float]:
    """The requests by arm and outcome, zeros left out."""
    return {
        (sample.labels["arm"], sample.labels["outcome"]): sample.value
        for family in driver.intake.router.families()
        if family.name == "hf_triton_arm_requests_total"
        for sample in family.samples
        if sample.value
    }


def assert_counted(driver: Driver, expected: dict[tuple[str, str], float]) -> None:
    """Soon: an answer is there before it is counted."""
    assert eventually(lambda: counted(driver) == expected), counted(driver)


def route(driver: Driver, folder: Path, **routing: Any) -> None:
    """Writes a routing, and waits until the model has seen it."""
    write(folder, **routing)
    wanted = {name: w for name, w in routing.items() if name != "sticky"}

    def is_seen() -> bool:
        found = driver.intake.router.routing
        if found is None or weights(driver) != wanted:
            return False
        return found.sticky == routing.get("sticky")

    assert eventually(is_seen)


def test_requests_are_split_by_weight_and_counted_by_arm(driver: Driver, tmp_path: Path) -> None:
    def numbers(name: str) -> dict[str, float]:
        families = {family.name: family for family in driver.intake.router.families()}
        return {s.labels["arm"]: s.value for s in families[f"hf_triton_arm_{name}"].samples}

    with Other(shout) as other:
        route(driver, tmp_path, stable=90, new=10)
        answers = Counter(driver.ask("hi").text for _ in range(200))
        assert all(taken.is_routed for taken in other.taken)
    assert answers == {"hi": 180, "HI": 20}
    assert_counted(driver, {("stable", "answered"): 180, ("new", "answered"): 20})
    assert numbers("weight") == {"stable": 90, "new": 10}
    assert numbers("duration_seconds_count") == {"stable": 180, "new": 20}
    route(driver, tmp_path, stable=100, b=0)
    assert numbers("weight") == {"stable": 100, "new": 0, "b": 0}


def test_weights_change_and_end_while_requests_come(driver: Driver, tmp_path: Path) -> None:
    with Other(shout):
        assert driver.ask("a").text == "a"
        route(driver, tmp_path, stable=0, new=100)
        assert driver.ask("a").text == "A"
        route(driver, tmp_path, stable=100, new=0)
        assert driver.ask("a").text == "a"
        (tmp_path / "routing.json").unlink()
        assert eventually(lambda: driver.intake.router.routing is None)
        assert driver.ask("a").text == "a"


def test_a_broken_file_changes_nothing_and_is_told_of_once(
    driver: Driver, tmp_path: Path, log_lines: list[str]
) -> None:
    with Other(shout):
        route(driver, tmp_path, stable=0, new=100)
        replace(tmp_path, '{"arms": [')
        assert eventually(
            lambda: any(line.startswith("W demo: routing.json") for line in log_lines)
        )
        time.sleep(0.2)
        assert driver.ask("a").text == "A"
        assert sum(line.startswith("W") for line in log_lines) == 1
        assert "the previous routing stays" in next(x for x in log_lines if x.startswith("W"))
        route(driver, tmp_path, stable=100, new=0)
        assert driver.ask("a").text == "a"


def test_a_file_that_cannot_be_read_routes_nothing_and_is_told_of_once(
    tmp_path: Path, log_lines: list[str]
) -> None:
    (tmp_path / "routing.json").mkdir()
    with driving(tmp_path) as driver:
        assert driver.ask("a").text == "a"
        time.sleep(0.1)
    assert sum("no request is routed" in line for line in log_lines) == 1


def test_a_stream_goes_on_at_the_arm_that_began_it(driver: Driver, tmp_path: Path) -> None:
    journal = tmp_path / "told"
    call = Call("0" * 32, str(tmp_path / "left"), num_responses=1, journal=str(journal))
    with Other(shout):
        route(driver, tmp_path, stable=100, new=0)
        for model, text in (("demo_new", "A"), ("demo", "a"), ("another", "a")):
            journal.write_text(json.dumps({"model": model}))
            assert driver.ask("a", call=call).text == text


@pytest.mark.parametrize("sticky", ["user", "text_input", "request_id"])
def test_one_value_stays_with_one_arm_wherever_it_stands(
    driver: Driver, tmp_path: Path, sticky: str
) -> None:
    def answer(value: str) -> str:
        text = value if sticky == "text_input" else "a"
        request_id = value if sticky == "request_id" else ""
        given = {"user": value} if sticky == "user" else {}
        return driver.ask(text, parameters=given, request_id=request_id).text

    with Other(shout):
        route(driver, tmp_path, sticky=sticky, stable=50, new=50)
        for number in range(8):
            assert len({answer(f"u{number}") for _ in range(5)}) == 1
        if sticky != "text_input":
            assert Counter(answer("") for _ in range(10)) == {"a": 5, "A": 5}


@pytest.mark.parametrize("name", ["team", "cache_salt", "hf-triton-caller"])
def test_a_parameter_that_only_keeps_callers_together_is_taken_out(
    driver: Driver, tmp_path: Path, name: str
) -> None:
    with Other(shout) as other:
        route(driver, tmp_path, sticky=name, stable=50, new=50)
        for number in range(20):
            driver.ask("x", parameters={name: f"{number}", "top_p": 1})
        given = [taken.parameters for taken in (*driver.taken, *other.taken)]
        assert 0 < len(driver.taken) < len(given)
        left = {"top_p"} if name == "team" else {name, "top_p"}
        assert all(parameters.keys() == left for parameters in given)


def test_what_another_model_has_routed_is_never_routed_again(
    driver: Driver, tmp_path: Path
) -> None:
    with Other() as other:
        route(driver, tmp_path, stable=0, new=100)
        assert driver.ask("a", is_routed=True).text == "a"
        assert other.taken == []
        assert_counted(driver, {})


def test_an_arm_that_is_not_there_is_answered_for_and_counted(
    driver: Driver, tmp_path: Path
) -> None:
    route(driver, tmp_path, stable=0, new=100)
    assert [driver.ask("a").text for _ in range(3)] == ["a"] * 3
    assert_counted(driver, {("new", "fallback"): 3, ("stable", "answered"): 3})
    with Other(shout):
        assert eventually(lambda: driver.ask("a").text == "A")


def test_an_arm_that_is_unloaded_or_dies_before_it_answers_is_answered_for(
    driver: Driver, tmp_path: Path
) -> None:
    with Other() as other:
        route(driver, tmp_path, stable=0, new=100)
        callers = [driver.start(text) for text in "abc"]
        first, *_ = other.waits_for(3)
        other.listener.drain()
        first.responder.fail(OverloadedError("the model is being unloaded: try again"))
        assert callers[0].wait().text == "a"
        other.vanish()
        assert [caller.wait().text for caller in callers] == ["a", "b", "c"]
        assert_counted(driver, {("new", "fallback"): 3, ("stable", "answered"): 3})


def test_an_arms_errors_are_the_answer(driver: Driver, tmp_path: Path) -> None:
    errors = iter(
        [RequestError("top_p: got 2"), OverloadedError("the queue is full"), ValueError()]
    )
    with Other(lambda request: request.responder.fail(next(errors))):
        route(driver, tmp_path, stable=0, new=100)
        found = [driver.ask("a").error for _ in range(3)]
    told = [(getattr(error, "status", ""), str(error)) for error in found]
    assert told == [
        ("INVALID_ARG", "top_p: got 2"),
        ("UNAVAILABLE", "the queue is full"),
        ("INTERNAL", "internal error: ValueError"),
    ]
    assert_counted(driver, {("new", "refused"): 1, ("new", "unavailable"): 1, ("new", "failed"): 1})
    assert driver.taken == []


def test_a_stream_comes_through_piece_by_piece(driver: Driver, tmp_path: Path) -> None:
    with taken_by_other(driver, tmp_path, may_stream=True) as (_, caller, taken):
        for text in "xy":
            taken.responder.send({"text_output": strings(text)}, final=False)
        assert eventually(lambda: len(caller.responses) == 2)
        assert not caller.done.is_set()
        taken.responder.send({"text_output": strings("z")}, final=True)
        caller.wait()
    assert [response["text_output"] for response in caller.responses] == [[b"x"], [b"y"], [b"z"]]
    assert_counted(driver, {("new", "answered"): 1})


def test_a_stream_that_breaks_off_is_an_error(driver: Driver, tmp_path: Path) -> None:
    with taken_by_other(driver, tmp_path, may_stream=True) as (other, caller, taken):
        taken.responder.send({"text_output": strings("x")}, final=False)
        assert eventually(lambda: len(caller.responses) == 1)
        other.vanish()
        assert str(caller.wait().error).startswith("the engine demo_new went away")
    assert_counted(driver, {("new", "unavailable"): 1})


def test_an_arm_learns_that_its_caller_has_gone(driver: Driver, tmp_path: Path) -> None:
    with taken_by_other(driver, tmp_path) as (_, caller, taken):
        caller.is_gone = True
        assert eventually(taken.responder.is_cancelled)
        assert isinstance(caller.wait().error, CancelledError)
        shout(taken)
    assert_counted(driver, {("new", "cancelled"): 1})


def test_an_arm_whose_weight_ends_answers_what_it_has(driver: Driver, tmp_path: Path) -> None:
    with taken_by_other(driver, tmp_path) as (other, caller, taken):
        (tmp_path / "routing.json").unlink()
        assert eventually(lambda: driver.intake.router.routing is None)
        time.sleep(0.2)
        shout(taken)
        assert caller.wait().text == "A"
        assert eventually(lambda: not other.listener.callers)


def test_unloading_waits_for_the_arms_answers_and_then_gives_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)

    def answer_one(driver: Driver, request: Request, caller: Caller) -> None:
        """Once the model is being unloaded; then its time is up."""
        listener = driver.intake.listener
        assert listener is not None
        assert eventually(lambda: listener.is_draining)
        shout(request)
        caller.wait()
        clock.ahead_s = 1000

    with Other() as other:
        write(tmp_path, stable=0, new=100)
        with driving(tmp_path) as driver:
            callers = [driver.start(text) for text in "ab"]
            first, _ = other.waits_for(2)
            threading.Thread(target=answer_one, args=(driver, first, callers[0])).start()
            driver.intake.drain(500.0)
        answers = [caller.wait() for caller in callers]
    assert answers[0].text == "A"
    assert "being unloaded" in str(answers[1].error)


def test_each_arm_runs_the_models_own_hooks_alone(tmp_path: Path) -> None:
    hooks = "def preprocess(request):\n    request['text_input'] = 'hooked'\n"
    with driving(tmp_path, hooks) as driver, Other(shout):
        route(driver, tmp_path, stable=50, new=50)
        assert Counter(driver.ask("a").text for _ in range(10)) == {"hooked": 5, "A": 5}


def test_an_arms_answer_is_never_kept_as_the_own(tmp_path: Path) -> None:
    with driving(tmp_path, cache_mib=1) as driver, Other(shout):
        route(driver, tmp_path, stable=50, new=50)
        assert Counter(driver.ask("a").text for _ in range(20)) == {"a": 10, "A": 10}
        assert len(driver.taken) == 1


def test_every_request_is_answered_once_while_arms_come_and_go(
    driver: Driver, tmp_path: Path
) -> None:
    def later(request: Request) -> None:
        threading.Timer(0.005, shout, [request]).start()

    callers: list[Caller] = []
    for turn in range(8):
        write(tmp_path, stable=50, new=50)
        with Other(later) as other:
            for _ in range(60):
                callers.append(driver.start("a"))
                time.sleep(0.001)
            if turn % 3 == 0:
                other.vanish()
            elif turn % 3 == 1:
                other.listener.drain()
    assert all(caller.wait().text in ("a", "A") for caller in callers)
