"""Every engine beside generating, vLLM's on a fake one: a full queue, failures, callers that leave,
deadlines, streams, stopping, a step that hangs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from hf_triton.runtime.errors import CancelledError, DeadlineError, EngineError, OverloadedError
from hf_triton.text_generation.engine.engine import Engine
from hf_triton.text_generation.engines.generate.generate_engine import GenerateEngine
from hf_triton.text_generation.engines.in_flight.in_flight_engine import InFlightEngine
from hf_triton.text_generation.engines.vllm.vllm_engine import VllmEngine
from tests.model.engine.fake_vllm import FakeVllm
from tests.support.driving import (
    LONG,
    Answers,
    Caller,
    Clock,
    Completion,
    no_thread_left,
    running,
    setup,
    submit,
)
from tests.support.tiny_models import tiny_model
from tests.support.triton import eventually

OURS = ["compiled", "pages", "generate"]
ours = pytest.mark.parametrize("make", OURS, indirect=True)


@pytest.fixture(params=[*OURS, "vllm"])
def make(request: pytest.FixtureRequest, not_fused: None) -> Callable[..., Engine]:
    def made(**options: Any) -> Engine:
        if request.param == "vllm":
            vllm = FakeVllm(max_num_seqs=2)
            return VllmEngine(setup(vllm, **options), vllm.start, lambda: None)
        asked = setup(tiny_model("llama"), max_num_seqs=2, **options)
        if request.param == "generate":
            return GenerateEngine(asked)
        return InFlightEngine(replace(asked, compiled=request.param == "compiled"))

    return made


@pytest.fixture
def engine(make: Callable[..., Engine]) -> Iterator[Engine]:
    with running(make(max_queue_size=3)) as engine:
        yield engine


class Held:
    """Holds every forward of the model's layers while it is closed."""

    def __init__(self, model: Any) -> None:
        self.entered, self.opened = threading.Event(), threading.Event()
        self.num_calls = 0
        model.model.layers[0].register_forward_pre_hook(self._hold)

    def _hold(self, *_: Any) -> None:
        self.num_calls += 1
        self.entered.set()
        assert self.opened.wait(60)


def hold(engine: Engine) -> Held | FakeVllm:
    """Holds what the engine computes; vLLM's fake, each request's second token."""
    model = engine.setup.model
    if not isinstance(model, FakeVllm):
        return Held(model)
    model.held_after = 1
    return model


def test_cancelled_sequences_leave_at_once_and_nobody_else_notices(engine: Engine) -> None:
    held, answers = hold(engine), Answers()
    leaving = submit(engine, answers, 0)
    staying = submit(engine, answers, 1, max_tokens=8)
    waiting = [submit(engine, answers, number) for number in (2, 3, 4)]
    assert held.entered.wait(60)
    engine.cancel([leaving, waiting[0], waiting[2]])
    held.opened.set()

    results = answers.wait(5)

    for number in (0, 2, 4):
        assert isinstance(results[number], CancelledError)
    assert len(leaving.token_ids) <= 2, "its slot is free within two steps"
    assert len(answers.completion(1).token_ids) == 8
    assert len(answers.completion(3).token_ids) == LONG
    assert staying.finish_reason == "length"
    assert eventually(lambda: engine.thread.num_unfinished == 0)
    assert eventually(lambda: engine.gauges["num_running"] == engine.gauges["num_waiting"] == 0)
    engine.cancel([leaving, staying])  # finished ones are left alone
    again = answers.sequence(5, [5, 6], max_tokens=8)
    engine.submit([again])
    assert answers.completion(5).token_ids == answers.completion(1).token_ids


@pytest.mark.threat("too-many-requests")
def test_a_full_queue_refuses_with_all_numbers_and_takes_again_later(engine: Engine) -> None:
    held, answers = hold(engine), Answers()
    for number in range(4):
        submit(engine, answers, number, max_tokens=3)
    with pytest.raises(OverloadedError) as raised:
        engine.submit([answers.sequence(number, [5, 6], max_tokens=3) for number in (4, 5)])
    assert str(raised.value) == (
        "the queue is full: 4 sequences run or wait and 1 more fit (max_num_seqs 2 + "
        "max_queue_size 3), got 2: try again later"
    )
    assert raised.value.status == "UNAVAILABLE"
    submit(engine, answers, 4, max_tokens=3)
    held.opened.set()
    assert len(answers.wait(5)) == 5
    submit(engine, answers, 5, max_tokens=3)
    assert answers.completion(5).token_ids == answers.completion(0).token_ids


@ours
def test_a_failing_step_answers_all_and_the_engine_goes_on(engine: Engine) -> None:
    calls: list[Any] = []

    def fail(*given: Any) -> None:
        calls.append(given)
        if len(calls) > 2:
            raise RuntimeError("boom\nand a second line")

    failing = engine.setup.model.model.layers[0].register_forward_pre_hook(fail)
    answers, params = Answers(), {"max_tokens": 6, "repetition_penalty": 1.3}
    asked = [answers.sequence(number, [5, 6], **params) for number in range(4)]
    engine.submit(asked[:3])
    for error in answers.wait(3).values():
        assert isinstance(error, EngineError)
        assert str(error) == "generating failed: RuntimeError: boom and a second line"
    failing.remove()
    engine.submit(asked[3:])
    assert len(answers.completion(3).token_ids) == 6
    assert not any(one.kept for one in asked), "nothing is kept of them"
    assert eventually(lambda: engine.thread.num_unfinished == 0)


def test_an_engine_whose_only_request_was_cancelled_rests(
    engine: Engine, log_lines: list[str]
) -> None:
    held, answers = hold(engine), Answers()
    for number in range(3):
        held.opened.clear()
        held.entered.clear()
        sequence = submit(engine, answers, number)
        assert held.entered.wait(60)
        engine.cancel([sequence])
        held.opened.set()
        assert isinstance(answers.wait(number + 1)[number], CancelledError)
    assert eventually(lambda: engine.thread.num_unfinished == 0)
    num_calls = held.num_calls
    time.sleep(0.05)
    assert held.num_calls == num_calls
    assert not [line for line in log_lines if line.startswith("E")]


def test_time_that_is_up_ends_with_what_there_is_or_with_an_error(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, answers, clock = hold(engine), Answers(), Clock(monkeypatch)
    now = time.monotonic()
    submit(engine, answers, 0, deadline_s=now + 60)
    submit(engine, answers, 1, deadline_s=now + 60, fails_on_timeout=True)
    submit(engine, answers, 2, deadline_s=now + 60)  # never started
    submit(engine, answers, 3, deadline_s=now + 600, max_tokens=4)
    assert held.entered.wait(60)
    clock.ahead_s = 100
    held.opened.set()

    results = answers.wait(4)

    partial, late = answers.completion(0), results[1]
    assert partial.finish_reason == "timeout"
    assert 0 < len(partial.token_ids) < LONG
    assert isinstance(late, DeadlineError)
    assert str(late).startswith("timeout_ms: the time is up; ")
    assert late.status == "UNAVAILABLE"
    assert answers.completion(2) == Completion("", (), "timeout", 2)
    assert answers.completion(3).finish_reason == "length"
    assert eventually(lambda: engine.thread.num_unfinished == 0)


@ours
def test_streams_get_every_token_as_it_comes_and_the_same_text(engine: Engine) -> None:
    answers = Answers()
    streamed = submit(engine, answers, 0, max_tokens=12, streams=True)
    submit(engine, answers, 1, max_tokens=12)
    assert answers.completion(0) == answers.completion(1)
    assert isinstance(streamed.recipient, Caller)
    updates = streamed.recipient.updates
    assert [len(update.token_ids) for update in updates] == [1] * 12
    assert [update.finish_reason for update in updates] == [None] * 11 + ["length"]


def test_unloading_lets_requests_finish_within_the_grace(engine: Engine) -> None:
    held, answers = hold(engine), Answers()
    for number in range(4):
        submit(engine, answers, number, max_tokens=3)
    assert held.entered.wait(60)
    stopper = threading.Thread(target=engine.stop, args=(300.0,))
    stopper.start()
    assert eventually(lambda: not engine.is_healthy)
    with pytest.raises(OverloadedError, match="being unloaded"):
        submit(engine, answers, 9)
    held.opened.set()
    stopper.join(60)
    assert [len(answers.completion(number).token_ids) for number in range(4)] == [3] * 4


@ours
def test_what_runs_beyond_the_grace_is_answered_at_once(engine: Engine) -> None:
    held, answers = hold(engine), Answers()
    for number in range(3):
        submit(engine, answers, number)
    assert held.entered.wait(60)
    stopper = threading.Thread(target=engine.stop)
    stopper.start()
    assert eventually(lambda: not engine.is_healthy)
    held.opened.set()
    stopper.join(60)
    results = answers.wait(3)
    assert {str(result) for result in results.values()} == {
        "the model was unloaded before it answered: try again later"
    }
    assert held.num_calls <= 2, "went on for nobody"


@ours
def test_a_step_that_hangs_is_given_up_and_the_engine_recovers_when_it_ends(
    make: Callable[..., Engine], log_lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    with running(make(watchdog_s=100.0)) as engine:
        held, answers = hold(engine), Answers()
        submit(engine, answers, 0)
        submit(engine, answers, 1)
        assert held.entered.wait(60)
        clock.ahead_s = 200
        results = answers.wait(2)
        for number in (0, 1):
            assert isinstance(results[number], OverloadedError)
            assert "stuck" in str(results[number])
            assert "watchdog_s" in str(results[number])
        assert not engine.is_healthy
        with pytest.raises(OverloadedError, match="stuck in a step"):
            submit(engine, answers, 2)
        held.opened.set()
        assert eventually(lambda: engine.is_healthy and not engine.thread.num_unfinished)
        submit(engine, answers, 3, max_tokens=4)
        assert len(answers.completion(3).token_ids) == 4
    assert [line for line in log_lines if "stuck" in line]


def test_nothing_is_left_of_an_engine_that_was_stopped(make: Callable[..., Engine]) -> None:
    with no_thread_left(), running(make()) as engine:
        assert engine.thread.is_alive
        answers = Answers()
        submit(engine, answers, 0, max_tokens=3)
        answers.wait(1)


@ours
def test_time_in_the_first_step_is_no_time_in_the_queue(
    make: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    with running(make()) as engine:
        held, answers, metrics = hold(engine), Answers(), engine.metrics
        submit(engine, answers, 0, max_tokens=3)
        assert held.entered.wait(60)
        clock.ahead_s = 200
        held.opened.set()
        answers.wait(1)
        assert metrics.queue_time_s.sum < 200 <= metrics.time_to_first_token_s.sum


def test_an_engine_counts_what_it_does(engine: Engine) -> None:
    answers, metrics = Answers(), engine.metrics
    for number in range(3):
        submit(engine, answers, number, max_tokens=5)
    answers.wait(3)
    assert eventually(lambda: metrics.finish_reasons["length"] == 3)
    assert metrics.num_prompt_tokens == 6
    assert metrics.num_generated_tokens == 15
    assert sum(metrics.time_to_first_token_s.counts) == 3
    assert sum(metrics.queue_time_s.counts) == 3
    assert sum(metrics.time_per_output_token_s.counts) == 3
    assert metrics.batch_size.sum == 15
