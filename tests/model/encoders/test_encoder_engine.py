"""Each work is answered exactly once, whatever fails, and results stay with their owners."""

from __future__ import annotations

import threading
import time
import types
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
import torch

from hf_triton.encoder.engine.engine import EncoderEngine, Work
from hf_triton.encoder.runners.runner import Runner
from hf_triton.encoder.texts.encoding import Encoding
from hf_triton.runtime.devices.device import check_device_works
from hf_triton.runtime.engine.thread_count import ThreadCount
from hf_triton.runtime.engine.watchdog import Watchdog
from hf_triton.runtime.errors import (
    CancelledError,
    DeviceLostError,
    EngineError,
    LoadError,
    OverloadedError,
)
from tests.model.encoders.failing_encoder import Echo
from tests.support.triton import eventually


class Caller:
    """Submits work and waits for its result."""

    def __init__(self, *token_ids: int, leaves: bool = False) -> None:
        self.leaves = leaves
        self.results: list[Any] = []
        self._done = threading.Event()
        self.work = Work([Encoding([i] * 4) for i in token_ids], self._take, lambda: self.leaves)

    def _take(self, result: Any) -> None:
        self.results.append(result)
        self._done.set()

    def result(self) -> Any:
        assert self._done.wait(60)
        assert len(self.results) == 1
        return self.results[0]


def started(runner: Echo, **options: Any) -> EncoderEngine:
    engine = EncoderEngine(
        lambda: runner,
        lambda outputs, _: outputs,
        max_num_batched_tokens=40,
        num_threads=1,
        **options,
    )
    engine.thread.start()
    return engine


def asking(engine: EncoderEngine, numbers: Iterable[int]) -> list[Caller]:
    """Callers of one encoding each."""
    callers = [Caller(number) for number in numbers]
    for caller in callers:
        engine.thread.submit([caller.work])
    return callers


def test_each_caller_gets_its_own_results_in_order() -> None:
    engine = started(Echo())
    callers = [Caller(*range(first, first + 5)) for first in range(20, 120, 5)]
    for caller in callers:
        engine.thread.submit([caller.work])
    for first, caller in zip(range(20, 120, 5), callers, strict=True):
        arrays = caller.result()
        assert [array.tolist() for array in arrays] == [[i] * 4 for i in range(first, first + 5)]
        assert arrays[0].dtype == np.float32
    engine.thread.stop()


def test_what_came_during_a_step_is_computed_together() -> None:
    runner = Echo()
    engine = started(runner)
    runner.may_go.clear()
    callers = asking(engine, range(30, 40))
    runner.may_go.set()
    for caller in callers:
        caller.result()
    assert sum(runner.steps) == 10
    assert len(runner.steps) <= 3
    engine.thread.stop()


@pytest.mark.parametrize("follows, expected", [(True, [4]), (False, [])])
def test_steps_are_timed_where_the_runner_computes_with_torchs_threads(
    monkeypatch: pytest.MonkeyPatch, follows: bool, expected: list[int]
) -> None:
    noted: list[int] = []
    monkeypatch.setattr(
        ThreadCount, "note", lambda _, num_tokens, seconds: noted.append(num_tokens)
    )
    runner, caller = Echo(), Caller(15)
    runner.follows_threads = follows
    engine = started(runner)
    engine.thread.submit([caller.work])
    caller.result()
    engine.thread.stop()
    assert noted == expected


def test_a_failing_step_fails_its_own_and_the_next_goes_on() -> None:
    runner = Echo()
    engine = started(runner)
    unlucky = Caller(13, 14)
    engine.thread.submit([unlucky.work])
    error = unlucky.result()
    assert isinstance(error, EngineError)
    assert "RuntimeError: unlucky" in str(error)
    later = Caller(15)
    engine.thread.submit([later.work])
    assert later.result()[0].tolist() == [15] * 4
    assert engine.thread.is_healthy
    engine.thread.stop()


def test_who_left_while_waiting_is_not_computed() -> None:
    runner = Echo()
    engine = started(runner)
    runner.may_go.clear()
    running, left = Caller(30), Caller(31, leaves=True)
    engine.thread.submit([running.work])
    left.work.submitted_s -= 1.0
    engine.thread.submit([left.work])
    runner.may_go.set()
    assert isinstance(left.result(), CancelledError)
    running.result()
    assert sum(runner.steps) == 1
    engine.thread.stop()


def test_what_waits_when_the_engine_stops_is_told_so() -> None:
    runner = Echo()
    engine = started(runner)
    runner.may_go.clear()
    callers = asking(engine, range(30, 60))
    stopping = threading.Thread(target=engine.thread.stop)
    stopping.start()
    assert eventually(lambda: engine.thread.stop_at_s is not None)
    runner.may_go.set()
    stopping.join(60)
    ended = [caller.result() for caller in callers]
    assert any(isinstance(result, OverloadedError) for result in ended)
    with pytest.raises(OverloadedError, match="being unloaded"):
        engine.thread.submit([Caller(1).work])


def test_what_preparing_raises_is_raised_by_start() -> None:
    def fails() -> Runner:
        raise MemoryError("no room")

    engine = EncoderEngine(fails, lambda o, _: o, max_num_batched_tokens=40, num_threads=1)
    with pytest.raises(LoadError, match="failed to start: MemoryError: no room"):
        engine.thread.start()


def test_a_step_that_hangs_is_given_up_and_the_engine_recovers_when_it_ends(
    log_lines: list[str],
) -> None:
    runner = Echo()
    engine = started(runner, watchdog_s=1.0)
    runner.may_go.clear()
    callers = [Caller(*range(20, 40)), Caller(41), Caller(42)]
    with engine.thread.condition:  # the step does not begin before all are there
        for caller in callers:
            engine.thread.submit([caller.work])
    for caller in callers:
        error = caller.result()
        assert isinstance(error, OverloadedError)
        assert "its step takes longer than 1 s (watchdog_s)" in str(error)
    assert not engine.thread.is_healthy
    with pytest.raises(OverloadedError, match="stuck in a step"):
        engine.thread.submit([Caller(43).work])
    engine.thread._watchdog._limit_s = 600.0
    runner.may_go.set()
    assert eventually(lambda: engine.thread.is_healthy)
    late = Caller(44)
    engine.thread.submit([late.work])
    assert late.result()[0].tolist() == [44] * 4
    assert [len(caller.results) for caller in callers] == [1, 1, 1]
    assert sum(runner.steps) < 20, "computed what was given up"
    assert [line for line in log_lines if "stuck" in line]
    engine.thread.stop()


def test_a_step_that_ends_while_it_is_found_to_be_late_leaves_nothing_stuck(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watchdog = Watchdog(1.0, lambda _: None)
    watchdog.begin_step()
    now = time.monotonic()
    ending = threading.Thread(target=watchdog.end_step)

    def clock() -> float:
        if threading.current_thread() is not ending:  # it is the look at the step
            ending.start()
            ending.join(0.1)
        return now + 5

    monkeypatch.setattr(
        "hf_triton.runtime.engine.watchdog.time", types.SimpleNamespace(monotonic=clock)
    )
    watchdog._finds_late()
    ending.join(60)
    assert not watchdog.is_stuck


def test_a_step_that_never_ends_does_not_hold_up_the_unload(
    log_lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hf_triton.runtime.engine.thread.LAST_STEP_S", 0.2)
    runner = Echo()
    engine = started(runner)
    runner.may_go.clear()
    callers = asking(engine, range(30, 60))
    assert runner.entered.wait(60)
    engine.thread.stop()
    assert engine.thread.is_alive, "it is still in its step"
    assert all(isinstance(caller.result(), OverloadedError) for caller in callers)
    assert [line for line in log_lines if "left to itself" in line]
    runner.may_go.set()
    assert eventually(lambda: not engine.thread.is_alive)
    assert all(len(caller.results) == 1 for caller in callers)


def test_an_engine_whose_device_is_lost_ends_and_answers_everyone(log_lines: list[str]) -> None:
    runner = Echo()

    def check_device() -> None:
        raise DeviceLostError("cuda:0 computes nothing any more")

    engine = started(runner, check_device=check_device)
    runner.may_go.clear()
    (first,) = asking(engine, [30])
    assert runner.entered.wait(60)
    callers = asking(engine, (31, 13, 32, 13, 33))
    runner.may_go.set()
    assert first.result()[0].tolist() == [30] * 4
    for caller in callers:
        error = caller.result()
        assert isinstance(error, OverloadedError)
        assert "the engine died: cuda:0 computes nothing any more" in str(error)
    assert not engine.thread.is_healthy
    with pytest.raises(OverloadedError, match="load the model anew"):
        engine.thread.submit([Caller(1).work])
    assert len([line for line in log_lines if "computes nothing any more" in line]) == 1
    engine.thread.stop()


def test_a_device_that_computes_is_no_reason_to_end() -> None:
    check_device_works(torch.device("cpu"))
    with pytest.raises(DeviceLostError, match=r"^meta computes nothing any more: "):
        check_device_works(torch.device("meta"))
