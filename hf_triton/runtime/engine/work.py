"""A request's work for an engine that answers it once, with all its results. Knows neither models
nor Triton.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from hf_triton.runtime import log
from hf_triton.runtime.engine.thread import EngineThread
from hf_triton.runtime.errors import CancelledError, place
from hf_triton.runtime.request.cancellation import has_left
from hf_triton.runtime.request.request_ids import labelled

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
    """Calls ``done`` of each work that has no answer yet, with its results or the error; an
    exception of one does not affect the others.
    """
    for work in thread.release(works):
        try:
            work.done(work.results if error is None else error)
        except Exception as failure:
            text = f"a result could not be handed on: {place(failure)}"
            log.error(labelled(work.request_id, text))


def begin(thread: EngineThread[W], work: W, queue_time: Callable[[float], None]) -> bool:
    """Whether to compute work, False where its caller has left; ``queue_time`` is told once how
    long it waited, in seconds.
    """
    waited_s = time.monotonic() - work.submitted_s
    if not work.started:
        work.started = True
        queue_time(waited_s)
    if has_left(work.is_cancelled, waited_s, work.request_id):
        finish(thread, [work], CancelledError("the caller has left"))
    return work in thread
