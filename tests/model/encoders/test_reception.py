"""Whatever fails between a request's arrival and its answer: it is answered exactly once, nothing
of it stays, and its neighbours don't notice.
"""

from __future__ import annotations

import gc
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from hf_triton.encoder.engine.engine import Work
from hf_triton.encoder.reception import give_way
from hf_triton.encoder.task import Prepared
from hf_triton.encoder.texts.encoding import Encoding
from hf_triton.runtime.errors import CancelledError, EngineError, OverloadedError, RequestError
from hf_triton.runtime.request.plain_request import PlainRequest
from hf_triton.runtime.request.responder import Responder
from hf_triton.runtime.request.tensors import RequestFields
from tests.model.encoders.failing_encoder import Caller, Echo, Lengths, Served, request, serving
from tests.support.triton import eventually

FAILURES: list[tuple[str, str, type[Exception], str]] = [
    ("raise-in-prepare", "", RequestError, "text_input: refused"),
    ("panic-in-prepare", "", EngineError, "internal error: Panic"),
    ("raise-in-answer", "", EngineError, "internal error: KeyError"),
    ("panic-in-answer", "", EngineError, "internal error: Panic"),
    ("raise-within-reduce", "", EngineError, "computing failed: ValueError: reduced to nothing"),
    ("unlucky", "", EngineError, "computing failed: RuntimeError: unlucky"),
    ("fine", "send", EngineError, "internal error: OSError"),
    ("raise-in-prepare", "fail", RequestError, "text_input: refused"),
]


@pytest.mark.parametrize("words, breaks, kind, message", FAILURES)
def test_whatever_fails_is_its_own_answer_and_leaves_nothing_behind(
    words: str, breaks: str, kind: type[Exception], message: str
) -> None:
    with serving() as served:
        failed = served.ask(words, breaks=breaks)
        error = failed.answer()
        assert type(error) is kind
        assert message in str(error)
        assert served.is_idle()
        assert served.ask("still here").answer() == [5, 4]
        assert served.engine.thread.is_healthy


@pytest.mark.parametrize("words, breaks, kind, message", FAILURES)
def test_nothing_holds_a_failed_request_in_memory(
    words: str, breaks: str, kind: type[Exception], message: str
) -> None:
    with serving() as served:
        callers = [served.ask(words, breaks=breaks) for _ in range(5)]
        for caller in callers:
            caller.answer()
        assert served.is_idle()
        held = [weakref.ref(caller) for caller in callers]
        del caller, callers

        def are_gone() -> bool:  # the engine's thread may be about to leave its step
            gc.collect()
            return all(one() is None for one in held)

        assert eventually(are_gone)


def test_neighbours_of_one_step_do_not_fail_with_one_of_them() -> None:
    with serving() as served:
        _, *callers = served.ask_together("a bc", "unlucky too", "raise-within-reduce", "def")
        assert callers[0].answer() == [1, 2]
        assert callers[3].answer() == [3]
        assert "unlucky" in str(callers[1].answer())
        assert "reduced to nothing" in str(callers[2].answer())
        assert max(served.runner.steps) > 2, "they were not computed together"
        assert served.is_idle()


@pytest.mark.parametrize("gathered", [list, torch.stack])
def test_answers_that_are_no_numbers_fail_alone(gathered: Callable[..., Any]) -> None:
    with serving() as served:
        served.engine._reduce = lambda outputs, _: gathered(
            [one[:1] / (one[0] - 7) * (one[0] - 7) for one in outputs]
        )
        _, *callers = served.ask_together("four", "sevenon", "five5")
        assert callers[0].answer() == [4]
        error = callers[1].answer()
        assert isinstance(error, EngineError)
        assert "is no number" in str(error)
        assert callers[2].answer() == [5]


def test_the_engine_sends_lone_answers_and_those_that_took_less_than_sending(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def answered_by() -> set[str]:
        callers = served.ask_together("a", "bc")
        assert [caller.answer() for caller in callers] == [[5], [1], [2]]
        return {caller.answered_by for caller in callers}

    with serving() as served:
        monkeypatch.setattr("hf_triton.encoder.engine.engine._SEND_S", 60.0)
        assert answered_by() == {"encoder-engine"}
        monkeypatch.setattr("hf_triton.encoder.engine.engine._SEND_S", 0.0)
        assert answered_by() == {"delivery"}
        lone = served.ask("lone")
        assert lone.answer() == [4]
        assert lone.answered_by == "encoder-engine"


def test_a_caller_that_cannot_be_asked_whether_it_left_is_answered() -> None:
    with serving() as served:
        served.ask_and_hold()
        odd = served.ask("second", breaks="is_cancelled")
        assert served.waits(1)
        time.sleep(0.1)
        served.runner.may_go.set()
        assert odd.answer() == [6]
        assert odd.was_asked
        assert served.engine.thread.is_healthy


def test_who_left_before_its_text_was_tokenised_costs_nothing() -> None:
    with serving() as served:
        served.task.may_go.clear()
        staying, leaving = (
            served.ask(letter * 1100) for letter in "sl"
        )  # too long to be read at once
        prepared = count_calls(served.task)
        leaving.has_left = True
        time.sleep(0.1)
        served.task.may_go.set()
        assert staying.answer() == [1100]
        assert isinstance(leaving.answer(), CancelledError)
        assert prepared() <= 1
        assert served.is_idle()
        assert served.engine.metrics.outcomes["cancelled"] == 1


@pytest.mark.parametrize("way", ["tensor", "parameter"])
def test_a_long_text_never_stands_before_a_short_one(way: str) -> None:
    with serving() as served:
        caller, long = Caller(), "held " + "a " * 20_000
        asked = request(long) if way == "tensor" else PlainRequest({}, {"text_input": long})
        served.reception.take(asked, ("lengths",), caller)
        assert served.ask("short").answer() == [5]
        assert not caller.answers
        served.task.held_may_go.set()
        assert len(caller.answer()) == 20_001


def test_a_work_that_raises_when_done_does_not_end_the_engine() -> None:
    with serving() as served:
        called = threading.Event()

        def done(_: object) -> None:
            called.set()
            raise RuntimeError("cannot schedule new futures after shutdown")

        served.engine.thread.submit([Work([Encoding([1])], done, lambda: False)])
        assert called.wait(60)
        assert served.ask("still here").answer() == [5, 4]
        assert served.engine.thread.is_healthy


def test_a_request_without_anything_to_compute_is_answered() -> None:
    with serving() as served:
        assert served.ask("").answer() == []
        assert served.is_idle()


def test_a_request_of_very_many_rows_lets_others_through() -> None:
    with serving() as served:
        many = served.ask_and_hold("word " * 20_000)
        computed_after = note_steps_before(served.runner, len("too"))
        few = served.ask("me too")
        assert served.waits(1)
        served.runner.may_go.set()
        assert few.answer() == [2, 3]
        assert many.answer() == [4] * 20_000
        assert computed_after == [1]
        assert len(served.runner.steps) > 20_000 / 64


def note_steps_before(runner: Echo, token_id: int) -> list[int]:
    """How many steps were computed before each one that has an encoding of this token."""
    found: list[int] = []
    forward = runner.forward

    def noting(batch: Sequence[Encoding]) -> list[torch.Tensor]:
        if any(encoding.input_ids == [token_id] for encoding in batch):
            found.append(len(runner.steps))
        return forward(batch)

    runner.forward = noting  # type: ignore[method-assign]
    return found


@pytest.mark.threat("too-many-requests")
def test_a_full_queue_refuses_at_once_and_those_inside_are_answered() -> None:
    with serving(max_queue_size=3) as served:
        served.runner.may_go.clear()
        inside = [served.ask("abc") for _ in range(3)]
        refused = [served.ask("abc") for _ in range(20)]
        for caller in refused:
            assert isinstance(caller.answer(), OverloadedError)
            assert "the queue is full: 3 requests (max_queue_size)" in str(caller.answers[0])
        served.runner.may_go.set()
        assert [caller.answer() for caller in inside] == [[3]] * 3
        assert served.is_idle()
        assert served.ask("again").answer() == [5]


def test_after_the_end_a_request_is_told_so() -> None:
    served = Served()
    served.close()
    assert isinstance(served.ask("late").answer(), OverloadedError)


def test_what_slips_in_between_admission_and_the_end_is_answered() -> None:
    served = Served()
    requests = served.reception._requests
    admit = requests.admit

    def admit_then_close(responder: Responder) -> bool:
        admitted = admit(responder)
        served.close(grace_s=0.0)
        return admitted

    requests.admit = admit_then_close  # type: ignore[method-assign]
    assert isinstance(served.ask("between").answer(), OverloadedError)
    assert served.is_idle()


def test_an_unload_does_not_tokenise_what_it_will_not_answer() -> None:
    served = Served()
    served.task.may_go.clear()
    callers = [served.ask("abc" * 400) for _ in range(20)]
    closing = threading.Thread(target=lambda: served.close(grace_s=0.0))
    prepared = count_calls(served.task)
    closing.start()
    assert eventually(lambda: served.engine.thread.stop_at_s is not None)
    served.task.may_go.set()
    closing.join(60)
    assert not closing.is_alive()
    assert all(isinstance(caller.answer(), OverloadedError) for caller in callers)
    assert prepared() <= 2
    assert served.is_idle()


def count_calls(task: Lengths) -> Callable[[], int]:
    """How often ``prepare`` is called from now on."""
    calls: list[int] = []
    prepare = task.prepare

    def counted(fields: RequestFields, wanted: frozenset[str]) -> Prepared:
        calls.append(1)
        return prepare(fields, wanted)

    task.prepare = counted  # type: ignore[method-assign]
    return lambda: len(calls)


def test_no_thread_is_left_when_it_ends() -> None:
    before = set(threading.enumerate())
    with serving() as served:
        callers = [served.ask(words) for words in ("fine", "unlucky", "raise-in-answer") * 20]
        for caller in callers:
            caller.answer()
    assert eventually(lambda: not {*threading.enumerate()} - before)


def test_what_is_counted_adds_up() -> None:
    with serving() as served:
        words = ("fine", "unlucky", "raise-in-prepare", "raise-in-answer") * 200
        callers: list[Caller] = []
        lock = threading.Lock()

        def ask_many(part: Sequence[str]) -> None:
            for word in part:
                caller = served.ask(word)
                with lock:
                    callers.append(caller)

        askers = [threading.Thread(target=ask_many, args=(words,)) for _ in range(4)]
        for asker in askers:
            asker.start()
        for asker in askers:
            asker.join()
        kinds = [type(caller.answer()) for caller in callers]
        assert served.is_idle()
        outcomes = served.engine.metrics.outcomes
        assert outcomes["ok"] == kinds.count(list)
        assert outcomes["error"] == kinds.count(EngineError)
        assert outcomes["refused"] == kinds.count(RequestError) + kinds.count(OverloadedError)
        assert outcomes.total() == len(callers) == 3200


def test_threads_of_long_texts_give_way_to_the_model() -> None:
    before = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    with ThreadPoolExecutor(1, initializer=give_way) as pool:
        own = pool.submit(lambda: os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        assert own.result() == max(before, 15)
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == before
