"""Takes requests in and follows them until they are answered.

A request is read and tokenised on a thread of its own kind, computed by the engine with whatever
else is there, and answered from another: so tokenisation overlaps the forward of the batch before,
and nothing stands between two steps. Long texts have threads of their own, so that tokenising one
never holds up a short one.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from hf_runtime import log
from hf_runtime.errors import (
    CancelledError,
    EngineError,
    OverloadedError,
    RequestError,
    RuntimeModelError,
    place,
    reason,
)
from hf_runtime.plain_request import SizedRequest, tensor_of
from hf_runtime.responder import Responder
from hf_runtime.tensors import RequestFields

from .engine import Array, Work, has_left
from .parts import Engine, Preparing
from .task import Prepared

_LONG_TEXT_BYTES = 16 * 1024  # a millisecond or two of a tokenizer's time
_LONG_TEXT_NICENESS = 15  # of 19: man 2 setpriority


def give_way() -> None:
    """Lowers the calling thread's priority: the model's threads wait for one another in each of
    its operations, and a core that one of them shares with a long text holds up all.
    """
    # Linux has priorities of threads; elsewhere it would be the process's.
    if hasattr(threading, "get_native_id") and Path("/proc/self/task").is_dir():
        thread = threading.get_native_id()
        niceness = max(_LONG_TEXT_NICENESS, os.getpriority(os.PRIO_PROCESS, thread))
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, thread, niceness)


class Reception:
    """The open requests of one engine."""

    def __init__(
        self,
        task: Preparing,
        engine: Engine,
        *,
        max_queue_size: int,
        num_tokenizer_threads: int,
        batched: bool,
    ) -> None:
        self._task = task
        self._engine = engine
        self._max_queue_size = max_queue_size
        self._batched = batched
        # Rust's own pool would take each text from the thread chosen for it here.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        num_long = max(1, num_tokenizer_threads // 4)
        self._short = ThreadPoolExecutor(num_tokenizer_threads - num_long, "tokenize")
        self._long = ThreadPoolExecutor(num_long, "tokenize-long", initializer=give_way)
        self._delivery = ThreadPoolExecutor(1, "delivery")
        self._open = 0
        self._closing = False
        self._changed = threading.Condition()

    @property
    def num_open(self) -> int:
        """Requests that wait or are worked on."""
        return self._open

    def take(self, request: SizedRequest, listed: Iterable[str], responder: Responder) -> None:
        """Starts one request, or answers it with what is wrong with it; never raises."""
        refusal = self._admit()
        if refusal:
            responder.fail(OverloadedError(f"{refusal}: try again later"))
            return
        lane = self._long if request.num_bytes > _LONG_TEXT_BYTES else self._short
        begin = partial(self._begin, request, frozenset(listed), responder, time.monotonic())
        self._run_on(lane, responder, begin)

    def drain(self, grace_s: float) -> None:
        """Takes no more requests and waits until those it has are answered, at most so long."""
        with self._changed:
            self._closing = True
            deadline_s = time.monotonic() + grace_s
            while self._open and time.monotonic() < deadline_s:
                self._changed.wait(deadline_s - time.monotonic())

    def close(self) -> None:
        """Ends the threads once everything that they were given is done."""
        for pool in (self._short, self._long, self._delivery):
            pool.shutdown()

    def _admit(self) -> str:
        """Counts one more open request; or a refused one, and says why."""
        with self._changed:
            if not self._closing and self._open < self._max_queue_size:
                self._open += 1
                return ""
            self._engine.metrics.outcomes["refused"] += 1
            if self._closing:
                return "the model is being unloaded"
            return f"the queue is full: {self._open} requests (max_queue_size)"

    def _run_on(
        self, pool: ThreadPoolExecutor, responder: Responder, work: Callable[[], None]
    ) -> None:
        """Runs a request's part on a thread of ``pool``; on this one after ``close``, when all that
        is left of it is to say so.
        """
        try:
            pool.submit(self._guarded, responder, work)
        except RuntimeError:
            self._guarded(responder, work)

    def _begin(
        self,
        request: SizedRequest,
        wanted: frozenset[str],
        responder: Responder,
        arrived_s: float,
    ) -> None:
        # What won't be computed need not be tokenised.
        self._engine.check_running()
        if has_left(responder.is_cancelled, time.monotonic() - arrived_s):
            raise CancelledError("the caller has left")
        fields = RequestFields(request, tensor_of, batched=self._batched)
        prepared = self._task.prepare(fields, wanted)
        if not prepared.encodings:
            self._deliver(prepared, [], responder)
            return

        def done(results: list[Array] | Exception) -> None:
            deliver = partial(self._deliver, prepared, results, responder)
            self._run_on(self._delivery, responder, deliver)

        self._engine.submit(Work(prepared.encodings, done, responder.is_cancelled))

    def _deliver(
        self, prepared: Prepared, results: list[Array] | Exception, responder: Responder
    ) -> None:
        if isinstance(results, Exception):
            raise results
        responder.send(prepared.answer(results), final=True)
        self._ended("ok")

    def _guarded(self, responder: Responder, work: Callable[[], None]) -> None:
        """Runs one request's part; whatever goes wrong is its own answer."""
        try:
            work()
        except BaseException as error:  # a panic of the tokenizers' Rust is no Exception
            self._failed(responder, error)

    def _failed(self, responder: Responder, error: BaseException) -> None:
        try:
            responder.fail(_answerable(error))
        except Exception as another:
            log.error(f"an error could not be sent: {place(another)}")
        self._ended(_outcome(error))

    def _ended(self, outcome: str) -> None:
        with self._changed:
            self._engine.metrics.outcomes[outcome] += 1
            self._open -= 1
            self._changed.notify_all()


def _answerable(error: BaseException) -> Exception:
    if isinstance(error, RuntimeModelError):
        return error
    log.error(f"a request failed: {place(error)}")
    # The text may quote the caller's: it goes to the caller alone.
    return EngineError(f"internal error: {type(error).__name__}: {reason(error)}")


def _outcome(error: Any) -> str:
    if isinstance(error, CancelledError):
        return "cancelled"
    return "refused" if isinstance(error, OverloadedError | RequestError) else "error"
