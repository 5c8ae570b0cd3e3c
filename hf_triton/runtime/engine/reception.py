"""Takes requests in and follows them until they are answered, for engines that answer once: a
request is read on a thread of a pool, computed by the engine's, and answered from a pool again.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from hf_triton.runtime import log
from hf_triton.runtime.engine.thread import EngineThread
from hf_triton.runtime.errors import CancelledError, place
from hf_triton.runtime.metrics.publishing import Family
from hf_triton.runtime.request.cancellation import has_left
from hf_triton.runtime.request.open_requests import OpenRequests, Threads
from hf_triton.runtime.request.request import Request
from hf_triton.runtime.request.responder import attempt

Item = TypeVar("Item")
Result = TypeVar("Result")
W = TypeVar("W", bound="Work[Any, Any]")


@dataclass(eq=False)
class Work(Generic[Item, Result]):
    """Items and the receiver of their results: ``done`` is called exactly once, with a result for
    each item or with an error; on the engine's thread, except where that is stuck.
    """

    items: Sequence[Item]
    done: Callable[[list[Result] | Exception], None]
    is_cancelled: Callable[[], bool]
    request_id: str = ""
    submitted_s: float = field(default_factory=time.monotonic)
    started: bool = False
    results: list[Result] = field(default_factory=list)

    @property
    def num_left(self) -> int:
        return len(self.items) - len(self.results)


def finish(thread: EngineThread[W], works: Iterable[W], error: Exception | None = None) -> None:
    """Calls ``done`` of each work that has no answer yet, with its results or the error."""
    for work in thread.release(works):
        try:
            work.done(work.results if error is None else error)
        except Exception as failure:
            text = f"a result could not be handed on: {place(failure)}"
            log.error(text, work.request_id)


def begin(thread: EngineThread[W], work: W, queue_time: Callable[[float], None]) -> bool:
    """Whether to compute work: False where its caller has left. Tells ``queue_time`` once."""
    waited_s = time.monotonic() - work.submitted_s
    if not work.started:
        work.started = True
        queue_time(waited_s)
    if has_left(work.is_cancelled, waited_s, work.request_id):
        finish(thread, [work], CancelledError("the caller has left"))
    return work in thread


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
