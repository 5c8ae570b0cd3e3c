"""The thread that calls the pipeline: what shares a call, who fails, what an unload leaves."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest

from hf_triton.pipeline.engine import PipelineEngine, Work
from hf_triton.runtime.engine.thread_count import ThreadCount
from hf_triton.runtime.errors import (
    DeviceLostError,
    EngineError,
    OverloadedError,
    RequestError,
    RuntimeModelError,
)
from tests.support.triton import eventually


class Doubling:
    """Doubles numbers; fails where one of them is negative, and waits while it is held up."""

    name = "doubling"
    is_on_cpu = True

    def __init__(self) -> None:
        self.calls: list[list[Any]] = []
        self.go = threading.Event()
        self.go.set()
        self.entered = threading.Event()

    def check(self, item: Any, parameters: Mapping[str, Any]) -> None:
        if item == 0:
            raise RequestError("zero")

    def results(self, items: Sequence[Any], parameters: Mapping[str, Any]) -> list[Any]:
        self.calls.append(list(items))
        self.entered.set()
        assert self.go.wait(60)
        if min(items) < -10:
            raise RuntimeError("secret")
        if min(items) < 0:
            raise ValueError("negative")
        return [parameters.get("factor", 2) * item for item in items]

    def failure(self, error: BaseException) -> RuntimeModelError:
        if isinstance(error, RuntimeModelError):
            return error
        fault = RequestError if isinstance(error, ValueError) else EngineError
        return fault(f"{type(error).__name__}: {error}")


class Caller:
    """Somebody who submits numbers and waits for what comes back."""

    def __init__(self, *items: int, factor: int = 2) -> None:
        self.answer: list[Any] | Exception | None = None
        self.num_answers = 0
        self.has_left = False
        self._answered = threading.Event()
        self.work = Work(
            items,
            self._take,
            lambda: self.has_left,
            parameters={"factor": factor},
            key=str(factor),
        )

    def _take(self, answer: list[Any] | Exception) -> None:
        self.answer = answer
        self.num_answers += 1
        self._answered.set()

    def wait(self) -> list[Any] | Exception | None:
        assert self._answered.wait(60)
        return self.answer

    def error(self) -> Exception:
        found = self.wait()
        assert isinstance(found, Exception)
        return found


Make = Callable[..., tuple[PipelineEngine, Doubling]]


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[tuple[PipelineEngine, Doubling]] = []

    def start(batch_size: int = 1, **options: Any) -> tuple[PipelineEngine, Doubling]:
        call = Doubling()
        loaded: Any = call
        engine = PipelineEngine(lambda: loaded, batch_size=batch_size, num_threads=1, **options)
        engine.thread.start()
        made.append((engine, call))
        return engine, call

    yield start
    for engine, call in made:
        call.go.set()
        engine.thread.stop()


def submit_behind_one(engine: PipelineEngine, call: Doubling, *callers: Caller) -> None:
    """Submits all while another call is under way, so that they wait together."""
    call.go.clear()
    first = Caller(1)
    engine.thread.submit([first.work])
    assert call.entered.wait(60)
    for caller in callers:
        engine.thread.submit([caller.work])
    call.go.set()
    first.wait()


def test_requests_with_equal_parameters_share_a_call(make: Make) -> None:
    engine, call = make(batch_size=8)
    callers = [Caller(2), Caller(3, factor=3), Caller(4), Caller(5, 6)]
    submit_behind_one(engine, call, *callers)
    assert [caller.wait() for caller in callers] == [[4], [9], [8], [10, 12]]
    assert call.calls == [[1], [2, 4, 5, 6], [3]]
    assert engine.metrics.batch_size.sum == 6
    assert sum(engine.metrics.queue_time_s.counts) == 5, "once for each request"


def test_calls_on_a_cpu_are_timed_by_their_items(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted: list[int] = []
    monkeypatch.setattr(ThreadCount, "note", lambda _, num, seconds: noted.append(num))
    engine, call = make(batch_size=8)
    callers = [Caller(2), Caller(5, 6)]
    submit_behind_one(engine, call, *callers)
    for caller in callers:
        caller.wait()
    call.is_on_cpu = False
    last = Caller(4)
    engine.thread.submit([last.work])
    last.wait()
    engine.thread.stop()
    assert noted == [1, 3]


def test_without_batches_each_input_has_its_own_call(make: Make) -> None:
    engine, call = make()
    callers = [Caller(2), Caller(3)]
    submit_behind_one(engine, call, *callers)
    assert [caller.wait() for caller in callers] == [[4], [6]]
    assert call.calls == [[1], [2], [3]]


def test_a_long_request_takes_turns_with_a_short_one(make: Make) -> None:
    engine, call = make(batch_size=2)
    long, short = Caller(2, 3, 4, 5, 6), Caller(7, factor=3)
    submit_behind_one(engine, call, long, short)
    assert long.wait() == [4, 6, 8, 10, 12]
    assert call.calls[1:3] == [[2, 3], [7]]


def test_one_bad_input_does_not_fail_its_batch(make: Make) -> None:
    engine, call = make(batch_size=8)
    bad, zero, good, both = Caller(-1), Caller(0), Caller(3), Caller(4, -2)
    submit_behind_one(engine, call, bad, zero, good, both)
    assert good.wait() == [6]
    assert str(bad.error()) == "ValueError: negative"
    assert str(zero.error()) == "zero"
    assert str(both.error()) == "input 1: ValueError: negative"
    assert all(isinstance(one.error(), RequestError) for one in (bad, zero, both))
    assert [one.num_answers for one in (bad, zero, good, both)] == [1, 1, 1, 1]


def test_a_failure_of_its_own_is_logged_without_its_text(make: Make, log_lines: list[str]) -> None:
    engine, _ = make()
    caller = Caller(-99)
    engine.thread.submit([caller.work])
    assert isinstance(caller.error(), EngineError)
    [line] = log_lines
    assert "RuntimeError at test_engine.py" in line
    assert "secret" not in line


def test_a_caller_who_has_left_is_not_computed(make: Make) -> None:
    engine, call = make()
    caller = Caller(2)
    caller.has_left = True
    caller.work.submitted_s -= 1
    engine.thread.submit([caller.work])
    assert str(caller.error()) == "the caller has left"
    assert call.calls == []


def test_a_call_that_hangs_is_given_up_and_the_engine_recovers_when_it_ends(make: Make) -> None:
    engine, call = make(watchdog_s=0.2)
    call.go.clear()
    callers = [Caller(1, 2), Caller(3)]
    for caller in callers:
        engine.thread.submit([caller.work])
    for caller in callers:
        assert "its step takes longer than 0.2 s (watchdog_s)" in str(caller.error())
    assert not engine.thread.is_healthy
    call.go.set()
    assert eventually(lambda: engine.thread.is_healthy)
    late = Caller(4)
    engine.thread.submit([late.work])
    assert late.wait() == [8]
    assert call.calls == [[1], [4]], "computed what was given up"
    assert [caller.num_answers for caller in callers] == [1, 1]


def test_a_pipeline_whose_device_is_lost_ends_and_answers_everyone(make: Make) -> None:
    def check_device() -> None:
        raise DeviceLostError("cuda:0 computes nothing any more")

    engine, call = make(check_device=check_device)
    fault, lost, waiting = Caller(-1), Caller(-99), Caller(2)
    submit_behind_one(engine, call, fault, lost, waiting)
    assert isinstance(fault.error(), RequestError), "the caller's fault, not the device's"
    for caller in (lost, waiting):
        assert "the engine died: cuda:0 computes nothing any more" in str(caller.error())
    with pytest.raises(OverloadedError, match="load the model anew"):
        engine.thread.submit([Caller(3).work])
