"""Whatever fails between a request's arrival and its answer: it is answered exactly once, and
nothing of it stays.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from hf_triton.pipeline.engine import PipelineEngine, Work
from hf_triton.pipeline.options import Options
from hf_triton.pipeline.reception import Reception
from hf_triton.pipeline.request import Query, ReadRow, Row
from hf_triton.runtime.errors import EngineError, OverloadedError, RequestError
from hf_triton.runtime.request.plain_request import PlainRequest
from tests.model.encoders.failing_encoder import Caller, Panic
from tests.model.pipeline.test_engine import Doubling
from tests.support.triton import eventually


class Numbers:
    """Reads numbers, one for each row; fails where a word says so, and can be held up."""

    def __init__(self) -> None:
        self.may_go = threading.Event()
        self.may_go.set()
        self.num_read = 0

    def read(self, row: Row, parameters: Mapping[str, Any]) -> ReadRow:
        assert self.may_go.wait(60)
        self.num_read += 1
        (word,) = (element.decode() for element in row["inputs"])
        if word == "raise":
            raise RequestError("inputs: refused")
        if word == "panic":
            raise Panic("index out of range: secret")
        item: Any = object() if word == "unwritable" else int(word)
        return ReadRow([Query([item], is_list=False)], {}, "")


class Served:
    """A reception, its engine and what they are made of."""

    def __init__(self) -> None:
        self.reader, self.call = Numbers(), Doubling()
        reader: Any = self.reader
        loaded: Any = self.call
        self.engine = PipelineEngine(lambda: loaded, batch_size=4, num_threads=1)
        self.engine.thread.start()
        self.reception = Reception(
            reader,
            self.engine,
            Options(max_queue_size=100, max_input_mib=1.0, num_reader_threads=1),
            names=frozenset(),
            batched=True,
        )

    def ask(self, *words: str, breaks: str = "") -> Caller:
        caller = Caller(breaks=breaks)
        array = np.array([[word.encode()] for word in words], dtype=np.object_)
        self.reception.take(PlainRequest({"inputs": array}, {}), ("output",), caller)
        return caller

    def close(self) -> None:
        self.reception.stop(0.0)

    def is_idle(self) -> bool:
        return eventually(lambda: self.reception.num_open == 0)


@contextmanager
def serving() -> Iterator[Served]:
    served = Served()
    try:
        yield served
    finally:
        served.close()


@pytest.mark.parametrize(
    "words, breaks, kind, message",
    [
        (["2", "raise"], "", RequestError, "inputs: refused"),
        (["2", "panic"], "", EngineError, "internal error: Panic"),
        (["2", "-99"], "", EngineError, "RuntimeError: secret"),
        (["2"], "send", EngineError, "internal error: OSError"),
        (["raise"], "fail", RequestError, "inputs: refused"),
        (["-99", "-99"], "fail", EngineError, "RuntimeError: secret"),
    ],
)
def test_whatever_fails_is_its_own_answer_and_leaves_nothing_behind(
    words: list[str], breaks: str, kind: type[Exception], message: str
) -> None:
    with serving() as served:
        error = served.ask(*words, breaks=breaks).answer()
        assert type(error) is kind
        assert message in str(error)
        assert served.is_idle()
        assert served.ask("3", "4").answer() == [6, 8]
        assert served.engine.thread.is_healthy


def test_a_panic_of_a_call_is_its_own_error_and_ends_nothing() -> None:
    with serving() as served:
        results = served.call.results

        def panic_once(items: Any, parameters: Any) -> Any:
            served.call.results = results  # type: ignore[method-assign]
            raise Panic("secret")

        served.call.results = panic_once  # type: ignore[method-assign]
        assert isinstance(served.ask("2").answer(), EngineError)
        assert served.is_idle()
        assert served.ask("3").answer() == [6]


def test_a_request_of_many_rows_that_meets_the_unload_is_answered_once() -> None:
    served = Served()
    served.reader.may_go.clear()
    callers = [served.ask("1", "2", "3") for _ in range(5)]
    closing = threading.Thread(target=served.close)
    closing.start()
    assert eventually(lambda: not served.engine.thread.is_healthy)
    served.reader.may_go.set()
    closing.join(60)
    assert not closing.is_alive()
    assert all(isinstance(caller.answer(), OverloadedError) for caller in callers)
    assert served.is_idle()
    assert served.reader.num_read <= 3, "read what was not to be answered"


def test_an_engine_that_stops_between_two_rows_answers_once() -> None:
    with serving() as served:
        stop_before(served, "2")
        assert isinstance(served.ask("1", "2", "3").answer(), OverloadedError)
        assert served.is_idle()


def test_no_thread_is_left_when_it_ends() -> None:
    before = set(threading.enumerate())
    with serving() as served:
        callers = [served.ask(word) for word in ("1", "raise", "panic", "-99") * 10]
        for caller in callers:
            caller.answer()
    assert eventually(lambda: not {*threading.enumerate()} - before)


def stop_before(served: Served, word: str) -> None:
    """Stops the engine when the row of ``word`` is submitted, or all rows are."""
    thread = served.engine.thread
    submit = thread.submit

    def stop_then_submit(items: Sequence[Work]) -> None:
        if any(list(work.items) == [int(word)] for work in items):
            thread.stop()
        submit(items)

    thread.submit = stop_then_submit  # type: ignore[method-assign]
