"""Takes requests in and follows them until they are answered, for engines that answer once: a
request is read on a thread of a pool, computed by the engine's, and answered from a pool again.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from typing import Any

from hf_triton.runtime.engine.thread import EngineThread
from hf_triton.runtime.engine.work_engine import Work, WorkEngine
from hf_triton.runtime.errors import CancelledError, OverloadedError, RequestError
from hf_triton.runtime.metrics.publishing import Family
from hf_triton.runtime.metrics.work_metrics import TURNED_AWAY
from hf_triton.runtime.request.file_threads import FileThreads
from hf_triton.runtime.request.request import Request
from hf_triton.runtime.request.responder import (
    Array,
    EndingResponder,
    Responder,
    attempt,
    attempt_on,
)
from hf_triton.tracing.trace import Trace


class PooledReception(ABC):
    """Counts requests between their arrival and their answer, and admits so many at once."""

    def __init__(
        self,
        thread: EngineThread[Any],
        pools: Iterable[Executor | FileThreads],
        *,
        max_queue_size: int,
        description: str,
        unload_grace_s: float,
        tokenizer: Any = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.description, self.unload_grace_s = description, unload_grace_s
        self._thread, self._pools = thread, tuple(pools)
        self._max_queue_size = max_queue_size
        self.num_open, self._closing = 0, False
        self._changed = threading.Condition()

    @property
    def is_healthy(self) -> bool:
        return self._thread.is_healthy

    @abstractmethod
    def families(self) -> Iterable[Family]: ...

    @abstractmethod
    def _accept(self, request: Request) -> None:
        """Starts a request. An exception becomes its answer."""

    @abstractmethod
    def _count(self, outcome: str) -> None:
        """Counts a request that was ok, refused, cancelled, an error, or TURNED_AWAY: not admitted.
        Called by one thread at a time.
        """

    def take(self, request: Request) -> None:
        """Starts one request. Raises OverloadedError where it is not admitted."""
        admitted = self.admit(request)
        attempt(admitted.responder, self._accept, admitted)

    def admit(self, request: Request) -> Request:
        """The request, counted until it is answered. Raises OverloadedError."""
        with self._changed:
            if self._closing or self.num_open >= self._max_queue_size:
                self._count(TURNED_AWAY)
                full = f"the queue is full: {self.num_open} requests (max_queue_size)"
                refusal = "the model is being unloaded" if self._closing else full
                raise OverloadedError(f"{refusal}: try again later")
            self.num_open += 1
        return replace(request, responder=EndingResponder(request.responder, self._ended))

    def _ended(self, error: Exception | None) -> None:
        outcome = "ok" if error is None else "error"
        outcome = "refused" if isinstance(error, OverloadedError | RequestError) else outcome
        outcome = "cancelled" if isinstance(error, CancelledError) else outcome
        with self._changed:
            self._count(outcome)
            self.num_open -= 1
            self._changed.notify_all()

    def stop(self, grace_s: float) -> None:
        """Admits no more, and waits at most ``grace_s`` for the open requests to end."""
        with self._changed:
            self._closing = True
            self._changed.wait_for(lambda: not self.num_open, grace_s)
        self._thread.stop()
        for pool in self._pools:
            pool.shutdown()


class WorkReception(PooledReception):
    """Sends the results of a WorkEngine on the threads of ``answers``."""

    def __init__(
        self,
        engine: WorkEngine,
        readers: Iterable[Executor | FileThreads],
        answers: Executor,
        **more: Any,
    ) -> None:
        """``more`` as of PooledReception."""
        super().__init__(engine.thread, (*readers, answers), **more)
        self._engine, self._answers = engine, answers

    def _count(self, outcome: str) -> None:
        self._engine.metrics.outcomes[outcome] += 1

    def _submit(
        self,
        items: Sequence[Any],
        responder: Responder,
        answer: Callable[[list[Any]], Mapping[str, Array]],
        trace: Trace | None,
    ) -> None:
        """Has the items computed, and sends what ``answer`` makes of their results."""

        def send(results: list[Any] | Exception) -> None:
            if isinstance(results, Exception):
                raise results
            responder.send(answer(results), final=True)

        def done(results: list[Any] | Exception) -> None:
            if self._engine.sends_itself:
                attempt(responder, send, results)
            else:
                attempt_on(self._answers, responder, partial(send, results))

        of_request = responder.is_cancelled, responder.request_id, trace
        self._thread.submit([Work(items, done, *of_request)])
