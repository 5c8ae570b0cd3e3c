"""Takes requests in and follows them until they are answered, for engines that answer once: a
request is read on a thread of a pool, computed by the engine's, and answered from a pool again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from hf_triton.runtime.engine.thread import EngineThread
from hf_triton.runtime.engine.work_engine import Work, WorkEngine
from hf_triton.runtime.metrics.publishing import Family
from hf_triton.runtime.request.open_requests import OpenRequests, Pool, Threads, attempt_on
from hf_triton.runtime.request.request import Request
from hf_triton.runtime.request.responder import Array, Responder, attempt


class PooledReception(ABC):
    def __init__(
        self,
        thread: EngineThread[Any],
        pools: Iterable[Threads],
        requests: OpenRequests,
        *,
        description: str,
        unload_grace_s: float,
        tokenizer: Any = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.description, self.unload_grace_s = description, unload_grace_s
        self._thread, self._pools, self._requests = thread, tuple(pools), requests

    @property
    def is_healthy(self) -> bool:
        return self._thread.is_healthy

    @property
    def num_open(self) -> int:
        return len(self._requests)

    @abstractmethod
    def families(self) -> Iterable[Family]: ...

    @abstractmethod
    def _accept(self, request: Request) -> None:
        """Starts a request. An exception becomes its answer."""

    def take(self, request: Request) -> None:
        """Starts one request. Raises OverloadedError where it is not admitted."""
        admitted = self._requests.admit(request)
        attempt(admitted.responder, self._accept, admitted)

    def stop(self, grace_s: float) -> None:
        self._requests.drain(grace_s)
        self._thread.stop()
        for pool in self._pools:
            pool.shutdown()


class WorkReception(PooledReception):
    """What a WorkEngine has computed is sent by the threads of ``answers``."""

    def __init__(
        self,
        engine: WorkEngine,
        readers: Iterable[Threads],
        answers: Pool,
        max_queue_size: int,
        *,
        description: str,
        unload_grace_s: float,
        tokenizer: Any = None,
    ) -> None:
        outcomes = engine.metrics.outcomes
        super().__init__(
            engine.thread,
            (*readers, answers),
            OpenRequests(
                max_queue_size,
                on_end=lambda outcome: outcomes.update([outcome]),
                on_turned_away=lambda: outcomes.update(["turned away"]),
            ),
            description=description,
            unload_grace_s=unload_grace_s,
            tokenizer=tokenizer,
        )
        self._engine, self._answers = engine, answers

    def _submit(
        self,
        items: Sequence[Any],
        responder: Responder,
        answer: Callable[[list[Any]], Mapping[str, Array]],
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

        self._thread.submit([Work(items, done, responder.is_cancelled, responder.request_id)])
