"""Requests whose files are read: callers are answered in time, whatever the files take."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from hf_triton.runtime.errors import CancelledError, DeadlineError, OverloadedError, RequestError
from hf_triton.runtime.request import file_threads
from hf_triton.runtime.request.file_threads import FileThreads, Reading, current_reading
from tests.support.triton import eventually


class Caller:
    """One request's responder: it may have left, and keeps its responses."""

    request_id = ""

    def __init__(self) -> None:
        self.has_left = False
        self.told: list[Any] = []

    def is_cancelled(self) -> bool:
        return self.has_left

    def ask(
        self,
        threads: FileThreads,
        read: Callable[[], None],
        deadline_s: float | None = None,
        num_bytes: int = 1,
    ) -> None:
        def all_of_it() -> Callable[[], None]:
            read()
            return partial(self.told.append, "begun")

        threads.run(Reading(self, deadline_s), num_bytes, all_of_it)

    def send(self, outputs: object, *, final: bool) -> None:
        raise AssertionError

    def fail(self, error: Exception) -> None:
        self.told.append(error)


@pytest.fixture
def threads() -> Iterator[FileThreads]:
    found = FileThreads(1)
    yield found
    found.shutdown()


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """An event that slow files wait for."""
    found = threading.Event()
    yield found
    found.set()


def wait(gate: threading.Event) -> None:
    assert gate.wait(60)


def never() -> None:
    raise AssertionError


def test_what_is_read_begins_and_what_fails_is_told(threads: FileThreads) -> None:
    def refuse() -> None:
        raise RequestError("image: no")

    read, refused = Caller(), Caller()
    read.ask(threads, lambda: None)
    refused.ask(threads, refuse)
    assert eventually(lambda: bool(refused.told))
    assert (read.told, str(refused.told[0])) == (["begun"], "image: no")


def test_what_no_thread_could_be_started_for_is_not_read_later(
    threads: FileThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    refused, other = Caller(), Caller()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start"):
            refused.ask(threads, never)
    other.ask(threads, lambda: None)
    assert eventually(lambda: bool(other.told))
    assert (refused.told, other.told) == ([], ["begun"])


@pytest.mark.threat("slow-media")
def test_a_caller_is_answered_at_its_deadline_and_never_begins(
    threads: FileThreads, gate: threading.Event
) -> None:
    seen: list[bool] = []

    def read() -> None:
        reading = current_reading()
        wait(gate)
        seen.append(reading.is_given_up)

    running, waiting = Caller(), Caller()
    running.ask(threads, read, time.monotonic() + 0.05)
    waiting.ask(threads, never, time.monotonic() + 0.05)
    assert eventually(lambda: bool(running.told and waiting.told))
    gate.set()
    assert eventually(lambda: seen == [True])
    assert [type(one) for one in running.told + waiting.told] == [DeadlineError] * 2


@pytest.mark.threat("slow-media")
def test_what_a_caller_that_has_left_waited_for_is_given_up(
    threads: FileThreads, gate: threading.Event
) -> None:
    running, waiting, other = Caller(), Caller(), Caller()
    running.ask(threads, partial(wait, gate))
    waiting.ask(threads, never)
    other.ask(threads, lambda: None)
    running.has_left = waiting.has_left = True
    assert eventually(lambda: bool(running.told and waiting.told))
    assert [type(one) for one in running.told + waiting.told] == [CancelledError] * 2
    gate.set()
    assert eventually(lambda: other.told == ["begun"])
    assert len(running.told) == 1


def test_more_files_than_may_wait_are_refused_and_taken_again_later(
    threads: FileThreads, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(file_threads.MAX_WAITING, "files", 100)
    first, second = Caller(), Caller()
    first.ask(threads, partial(wait, gate), num_bytes=1000)  # alone, however large
    with pytest.raises(OverloadedError, match="too many files wait to be read"):
        second.ask(threads, never, num_bytes=1)
    gate.set()

    def is_taken() -> bool:
        with suppress(OverloadedError):
            second.ask(threads, lambda: None, num_bytes=100)
            return True
        return False

    assert eventually(is_taken)
    assert eventually(lambda: second.told == ["begun"])


def test_at_the_unload_what_waits_and_what_is_read_is_refused(gate: threading.Event) -> None:
    threads = FileThreads(1)
    running, waiting = Caller(), Caller()
    running.ask(threads, partial(wait, gate))
    waiting.ask(threads, never)
    closing = threading.Thread(target=threads.shutdown)
    closing.start()
    assert eventually(lambda: bool(running.told and waiting.told))
    assert [type(one) for one in running.told + waiting.told] == [OverloadedError] * 2
    gate.set()
    closing.join(60)
    with pytest.raises(OverloadedError, match="the model is being unloaded"):
        Caller().ask(threads, never)
