"""Encoders and pipelines, whatever fails between a request's arrival and its answer: it is answered
exactly once, nothing of it stays, and its neighbours don't notice.
"""

from __future__ import annotations

import gc
import os
import threading
import time
import types
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hf_triton.encoder.reception import give_way
from hf_triton.encoder.texts.encoding import Encoding
from hf_triton.runtime.devices.device import check_device_works
from hf_triton.runtime.engine.reception import PooledReception
from hf_triton.runtime.engine.thread import Watchdog
from hf_triton.runtime.engine.thread_count import StepThreads
from hf_triton.runtime.engine.work_engine import Work, WorkEngine
from hf_triton.runtime.errors import (
    CancelledError,
    EngineError,
    OverloadedError,
    RequestError,
)
from hf_triton.runtime.request.request import Request
from tests.support.receptions import Caller, Served, ServedEncoder, ServedPipeline, serving
from tests.support.triton import eventually

KINDS: dict[str, Callable[..., Any]] = {"encoder": ServedEncoder, "pipeline": ServedPipeline}
Make = Callable[..., Served]


@pytest.fixture(params=KINDS)
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(serving(KINDS[request.param], **options))


@pytest.fixture
def encoder() -> Iterator[ServedEncoder]:
    with serving(ServedEncoder) as served:
        yield served


BOTH: list[tuple[str, str, type[Exception], str]] = [
    ("raise-in-read", "", RequestError, "refused"),
    ("raise-in-read", "fail", RequestError, "refused"),
    ("panic-in-read", "", EngineError, "internal error: Panic"),
    ("unlucky", "", EngineError, "RuntimeError: secret"),
    ("unlucky", "fail", EngineError, "RuntimeError: secret"),
    ("fine", "send", EngineError, "internal error: OSError"),
]
FAILURES = [
    *((kind, *failure) for kind in KINDS for failure in BOTH),
    ("encoder", "raise-in-answer", "", EngineError, "internal error: KeyError"),
    ("encoder", "panic-in-answer", "", EngineError, "internal error: Panic"),
    ("encoder", "raise-in-reduce", "", EngineError, "failed: ValueError: reduced to nothing"),
    ("pipeline", "wrong", "", RequestError, "ValueError: a wrong word"),
    ("pipeline", "panic", "", EngineError, "Panic: secret"),
]


@pytest.mark.parametrize("kind, words, breaks, error_kind, message", FAILURES)
def test_whatever_fails_is_its_own_answer_and_leaves_nothing_behind(
    kind: str,
    words: str,
    breaks: str,
    error_kind: type[Exception],
    message: str,
    log_lines: list[str],
) -> None:
    with serving(KINDS[kind]) as served:
        callers = [served.ask(words, breaks=breaks) for _ in range(3)]
        for caller in callers:
            error = caller.answer()
            assert (type(error), message in str(error)) == (error_kind, True)
        assert served.is_idle()
        assert served.ask("still here").answer() == [5, 4]
        assert served.reception.is_healthy
        held = [weakref.ref(caller) for caller in callers]
        del caller, callers, error

        def are_gone() -> bool:  # the engine's thread may be about to leave its step
            gc.collect()
            return all(one() is None for one in held)

        assert eventually(are_gone)
    assert not [line for line in log_lines if "secret" in line]


def test_neighbours_of_one_step_do_not_fail_with_one_of_them(make: Make) -> None:
    served = make(check_device=partial(check_device_works, torch.device("cpu")))
    _, good, bad, other = served.ask_together("a bc", "too unlucky", "def")
    assert (good.answer(), other.answer()) == ([1, 2], [3])
    assert "RuntimeError: secret" in str(bad.answer())
    assert max(map(len, served.model.steps)) > 2, "they were not computed together"
    assert served.is_idle()


def test_a_caller_who_leaves_while_it_waits_is_not_computed(make: Make) -> None:
    served = make()
    running = served.ask_and_hold()
    leaving = served.ask("leaving")
    leaving.has_left = True
    assert served.waits(1)
    time.sleep(0.1)
    served.model.computing.may_go.set()
    assert isinstance(leaving.answer(), CancelledError)
    assert running.answer() == [5]
    assert served.model.steps == [["first"]]


def test_a_caller_that_cannot_be_asked_whether_it_left_is_answered(make: Make) -> None:
    served = make()
    served.ask_and_hold()
    odd = served.ask("second", breaks="is_cancelled")
    assert served.waits(1)
    time.sleep(0.1)
    served.model.computing.may_go.set()
    assert odd.answer() == [6]
    assert odd.was_asked
    assert served.reception.is_healthy


def test_a_long_request_takes_turns_with_a_short_one(make: Make) -> None:
    served = make()
    many = served.ask_and_hold("word " * 2_000)
    few = served.ask("me too")
    assert served.waits(1)
    served.model.computing.may_go.set()
    assert few.answer() == [2, 3]
    assert many.answer() == [4] * 2_000
    assert next(n for n, step in enumerate(served.model.steps) if "too" in step) <= 3
    assert len(served.model.steps) > 2_000 / 64


@pytest.mark.threat("too-many-requests")
def test_a_full_queue_refuses_at_once_and_those_inside_are_answered(make: Make) -> None:
    served = make(max_queue_size=3)
    inside = [served.ask_and_hold(), served.ask("abc"), served.ask("abc")]
    for caller in [served.ask("abc") for _ in range(20)]:
        assert isinstance(caller.answer(), OverloadedError)
        assert "the queue is full: 3 requests (max_queue_size)" in str(caller.answers[0])
    served.model.computing.may_go.set()
    assert [caller.answer() for caller in inside] == [[5], [3], [3]]
    assert served.is_idle()
    assert served.ask("again").answer() == [5]


def test_an_unload_does_not_read_what_it_will_not_answer(make: Make) -> None:
    served = make()
    served.model.reading.may_go.clear()
    callers = [served.ask("abc" * 400, *["abc"] * (num_rows(served) - 1)) for _ in range(20)]
    closing = threading.Thread(target=served.close, args=(0.0,))
    closing.start()
    assert eventually(lambda: served.engine.thread.stop_at_s is not None)
    served.model.reading.may_go.set()
    closing.join(60)
    assert not closing.is_alive()
    assert all(isinstance(caller.answer(), OverloadedError) for caller in callers)
    assert served.model.num_read <= 2 * num_rows(served)
    assert served.is_idle()
    assert isinstance(served.ask("late").answer(), OverloadedError)


def num_rows(served: Served) -> int:
    return 3 if isinstance(served, ServedPipeline) else 1


def test_what_slips_in_between_admission_and_the_end_is_answered(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = make()
    admit = PooledReception.admit

    def admit_then_close(reception: PooledReception, request: Request) -> Request:
        admitted = admit(reception, request)
        served.close(grace_s=0.0)
        return admitted

    monkeypatch.setattr(PooledReception, "admit", admit_then_close)
    assert isinstance(served.ask("between").answer(), OverloadedError)
    assert served.is_idle()


def test_a_step_that_hangs_is_given_up_and_the_engine_recovers_when_it_ends(
    make: Make, log_lines: list[str]
) -> None:
    served = make(watchdog_s=0.2)
    callers = [served.ask_and_hold("first and more"), served.ask("waits")]
    for caller in callers:
        error = caller.answer()
        assert isinstance(error, OverloadedError)
        assert "its step takes longer than 0.2 s (watchdog_s)" in str(error)
    assert not served.reception.is_healthy
    assert "stuck in a step" in str(served.ask("late").answer())
    served.engine.thread.watchdog.limit_s = 600.0
    served.model.computing.may_go.set()
    assert eventually(lambda: served.reception.is_healthy)
    assert served.ask("again").answer() == [5]
    assert not any("waits" in step for step in served.model.steps), "computed what was given up"
    assert [caller.answer() for caller in callers], "answered once"
    assert [line for line in log_lines if "stuck" in line]


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
        "hf_triton.runtime.engine.thread.time", types.SimpleNamespace(monotonic=clock)
    )
    watchdog.look()
    ending.join(60)
    assert not watchdog.is_stuck


def test_a_step_that_never_ends_does_not_hold_up_the_unload(
    make: Make, log_lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hf_triton.runtime.engine.thread.LAST_STEP_S", 0.2)
    served = make()
    callers = [served.ask_and_hold(), served.ask("second")]
    assert served.waits(1)
    served.close(grace_s=0.0)
    assert served.engine.thread.is_alive, "it is still in its step"
    assert all(isinstance(caller.answer(), OverloadedError) for caller in callers)
    assert [line for line in log_lines if "it is abandoned" in line]
    served.model.computing.may_go.set()
    assert eventually(lambda: not served.engine.thread.is_alive)
    assert all(len(caller.answers) == 1 for caller in callers)


def test_an_engine_whose_device_is_lost_ends_and_answers_everyone(
    make: Make, log_lines: list[str]
) -> None:
    served = make(check_device=partial(check_device_works, torch.device("meta")))
    first, *callers = served.ask_together("one", "unlucky", "three")
    assert first.answer() == [5]
    for caller in callers:
        error = caller.answer()
        assert isinstance(error, OverloadedError)
        assert "the engine died: meta can't compute any more" in str(error)
    assert not served.reception.is_healthy
    assert "reload the model" in str(served.ask("late").answer())
    assert len([line for line in log_lines if "can't compute any more" in line]) == 1


@pytest.mark.parametrize("kind, flag, values, sizes", [
    ("encoder", "runner.follows_threads", (True, False), [5, 4]),  # tokens
    ("pipeline", "model.device", (torch.device("cpu"), torch.device("cuda")), [1, 2]),  # items
])  # fmt: skip
def test_steps_are_timed_where_they_compute_with_torchs_threads(
    kind: str,
    flag: str,
    values: tuple[Any, Any],
    sizes: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    noted: list[int] = []
    monkeypatch.setattr(StepThreads, "note", lambda _, size, seconds: noted.append(size))
    with serving(KINDS[kind]) as served:
        part, name = flag.split(".")
        for follows, words in ((True, "first"), (True, "ab cd"), (False, "last")):
            setattr(getattr(served, part), name, values[not follows])
            served.ask(words).answer()
    assert noted == sizes


def test_no_thread_is_left_when_it_ends(make: Make) -> None:
    before = set(threading.enumerate())
    served = make()
    for caller in [served.ask(words) for words in ("fine", "unlucky", "raise-in-read") * 10]:
        caller.answer()
    served.close()
    assert eventually(lambda: not {*threading.enumerate()} - before)


def test_what_is_counted_adds_up(encoder: ServedEncoder) -> None:
    words = ("fine", "unlucky", "raise-in-read", "raise-in-answer") * 50
    with ThreadPoolExecutor(4) as pool:
        callers = [*pool.map(encoder.ask, words * 4)]
    kinds = Counter(type(caller.answer()) for caller in callers)
    assert encoder.is_idle()
    outcomes = encoder.engine.metrics.outcomes
    assert outcomes["ok"] == kinds[list]
    assert outcomes["error"] == kinds[EngineError]
    refused = outcomes["refused"] + outcomes["turned away"]
    assert refused == kinds[RequestError] + kinds[OverloadedError]
    assert outcomes.total() == len(callers)


@pytest.mark.parametrize("gathered", [list, torch.stack])
def test_answers_that_are_no_numbers_fail_alone(
    gathered: Callable[..., Any], encoder: ServedEncoder
) -> None:
    encoder.engine.reduce = lambda outputs, _: gathered(
        [(one / (one - 7) * (one - 7)).reshape(1) for one in outputs]
    )
    _, four, seven, five = encoder.ask_together("four", "sevenon", "five5")
    assert (four.answer(), five.answer()) == ([4], [5])
    assert isinstance(seven.answer(), EngineError)
    assert "is not a number" in str(seven.answer())


def test_the_engine_sends_lone_answers_and_those_that_took_less_than_sending(
    encoder: ServedEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answered_by() -> set[str]:
        callers = encoder.ask_together("a", "bc")
        assert [caller.answer() for caller in callers] == [[5], [1], [2]]
        return {caller.answered_by for caller in callers}

    monkeypatch.setattr("hf_triton.encoder.engine.encoder_engine.SEND_S", 60.0)
    assert answered_by() == {"encoder-engine"}
    monkeypatch.setattr("hf_triton.encoder.engine.encoder_engine.SEND_S", 0.0)
    assert answered_by() == {"delivery_0"}
    lone = encoder.ask("lone")
    assert lone.answer() == [4]
    assert lone.answered_by == "encoder-engine"


def test_an_answer_for_which_no_thread_starts_is_sent_once(
    encoder: ServedEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("hf_triton.encoder.engine.encoder_engine.SEND_S", 0.0)
    for refuses in (True, False):
        with monkeypatch.context() as patch:
            if refuses:
                patch.setattr(threading.Thread, "start", refuse)
            callers = encoder.ask_together("a", "bc")
            assert [caller.answer() for caller in callers] == [[5], [1], [2]]
    assert encoder.is_idle()
    assert encoder.engine.metrics.outcomes == {"ok": 6}


def test_who_left_before_its_text_was_read_costs_nothing(encoder: ServedEncoder) -> None:
    encoder.model.reading.may_go.clear()
    staying, leaving = (encoder.ask(letter * 1100) for letter in "sl")  # too long for this thread
    leaving.has_left = True
    time.sleep(0.1)
    encoder.model.reading.may_go.set()
    assert staying.answer() == [1100]
    assert isinstance(leaving.answer(), CancelledError)
    assert encoder.model.num_read == 1
    assert encoder.is_idle()
    assert encoder.engine.metrics.outcomes["cancelled"] == 1


@pytest.mark.parametrize("way", ["tensor", "parameter"])
def test_a_long_text_never_stands_before_a_short_one(way: str, encoder: ServedEncoder) -> None:
    caller, long = Caller(), "long " + "a " * 20_000
    encoder.model.long_text.may_go.clear()
    asked = encoder.request(long, caller=caller)
    if way == "parameter":
        asked = Request({}, {"text_input": long}, caller, asked.outputs)
    encoder.reception.take(asked)
    assert encoder.ask("short").answer() == [5]
    assert not caller.answers
    encoder.model.long_text.may_go.set()
    assert len(caller.answer()) == 20_001


def test_threads_of_long_texts_give_way_to_the_model() -> None:
    before = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    with ThreadPoolExecutor(1, initializer=give_way) as pool:
        own = pool.submit(lambda: os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        assert own.result() == max(before, 15)
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == before


def test_a_work_that_raises_when_done_does_not_end_the_engine(encoder: ServedEncoder) -> None:
    called = threading.Event()

    def done(_: object) -> None:
        called.set()
        raise RuntimeError("cannot schedule new futures after shutdown")

    encoder.engine.thread.submit([Work([Encoding([1])], done, lambda: False)])
    assert called.wait(60)
    assert encoder.ask("still here").answer() == [5, 4]


def test_a_request_without_anything_to_compute_is_answered(encoder: ServedEncoder) -> None:
    assert encoder.ask("").answer() == []
    assert encoder.is_idle()


class Lengths(WorkEngine):
    """Its items are numbers, each as large as it says."""

    def __init__(self) -> None:
        super().__init__("lengths", 32, num_threads=1, watchdog_s=60, check_device=lambda: None)
        self.steps: list[list[int]] = []

    def prepare(self) -> None:
        pass

    def size(self, item: int) -> int:
        return item

    def compute(self, items: Sequence[int]) -> Sequence[int]:
        self.steps.append([*items])
        return items

    def failure(self, item: Any, error: BaseException) -> EngineError:
        raise error


@given(st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=6), max_size=8))
def test_every_item_is_computed_exactly_once_in_turns(requests: list[list[int]]) -> None:
    """One larger than a step is computed by itself, and what was given up is not."""
    engine, results = Lengths(), [list[Any]() for _ in requests]
    works = [
        Work(sizes, result.append, lambda: False)
        for sizes, result in zip(requests, results, strict=True)
    ]
    engine.thread.submit(works)
    engine.thread.take_in()
    engine.thread.release(works[3:4])
    while engine.has_work():
        engine.step()
    assert all(len(step) == 1 or sum(step) <= 32 for step in engine.steps)
    open_ones = [sizes for number, sizes in enumerate(requests) if number != 3]
    assert [one for step in engine.steps for one in step] == [
        sizes[turn] for turn in range(6) for sizes in open_ones if turn < len(sizes)
    ]
    assert [found for found in results if found] == [[sizes] for sizes in open_ones]


@pytest.mark.parametrize("batch_size, steps", [
    (8, [["first"], ["ab", "efg", "h", "ij"], ["cd"]]),
    (1, [["first"], ["ab"], ["cd"], ["efg"], ["h"], ["ij"]]),
])  # fmt: skip
def test_requests_with_equal_parameters_share_a_pipelines_call(
    batch_size: int, steps: list[list[str]]
) -> None:
    with serving(ServedPipeline, batch_size=batch_size) as served:
        callers = served.ask_together("ab", "cd:red", "efg", "h ij")
        assert [caller.answer() for caller in callers] == [[5], [2], [2], [3], [1, 2]]
        assert served.model.steps == steps
        assert served.engine.metrics.batch_size.sum == 6
        assert sum(served.engine.metrics.queue_s.counts) == 5, "once for each request"


def test_one_bad_input_does_not_fail_its_batch_and_is_named_by_its_place() -> None:
    with serving(ServedPipeline) as served:
        _, bad, refused, good, both = served.ask_together("wrong", "refused", "abc", "de wrong")
        assert good.answer() == [3]
        assert str(bad.answer()) == "the lengths pipeline: ValueError: a wrong word"
        assert str(refused.answer()) == "refused"
        assert str(both.answer()) == "input 1: the lengths pipeline: ValueError: a wrong word"
        assert all(isinstance(one.answer(), RequestError) for one in (bad, refused, both))


def test_an_input_that_is_refused_leaves_the_others_in_one_call() -> None:
    with serving(ServedPipeline) as served:
        _, refused, *good = served.ask_together("refused", "abc", "de", "f refused")
        assert [str(one.answer()) for one in (refused, good.pop())] == [
            "refused",
            "input 1: refused",
        ]
        assert [one.answer() for one in good] == [[3], [2]]
        assert served.model.steps == [["first"], ["abc", "de", "f"]]


def test_an_engine_that_stops_between_two_rows_answers_once() -> None:
    with serving(ServedPipeline) as served:
        thread = served.engine.thread
        submit = thread.submit

        def stop_then_submit(items: Sequence[Any]) -> None:
            if any(given.item == "bc" for work in items for given in work.items):
                thread.stop()
            submit(items)

        thread.submit = stop_then_submit
        assert isinstance(served.ask("a", "bc", "def").answer(), OverloadedError)
        assert served.is_idle()
