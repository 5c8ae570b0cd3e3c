"""An engine that answers once: computes the items of waiting requests together, as the steps of an
engine's thread. Knows neither Triton nor what it computes.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hf_triton.runtime import log
from hf_triton.runtime.engine.thread import EngineThread
from hf_triton.runtime.errors import CancelledError, RequestError, RuntimeModelError, place
from hf_triton.runtime.metrics.work_metrics import WorkMetrics
from hf_triton.runtime.request.cancellation import has_left
from hf_triton.tracing.trace import Trace

_ASK_EVERY_S = 1.0  # whether a caller has left


@dataclass(eq=False)
class Work:
    """Items and the receiver of their results: ``done`` is called exactly once, with a result for
    each item or with an error; on the engine's thread, except where that is stuck.
    """

    items: Sequence[Any]
    done: Callable[[list[Any] | Exception], None]
    is_cancelled: Callable[[], bool]
    request_id: str = ""
    trace: Trace | None = None
    submitted_s: float = field(default_factory=time.monotonic)
    started_s: float | None = None  # its first step
    asked_s: float = 0.0  # when its caller was last asked for
    results: list[Any] = field(default_factory=list)


Entry = tuple[Work, int]  # and the index of one of its items


class WorkEngine(ABC):
    """``sends_itself``: answers should be sent on the engine's thread."""

    sends_itself = False

    def __init__(
        self,
        name: str,
        max_size: int,
        *,
        num_threads: int,
        watchdog_s: float = 300.0,
        check_device: Callable[[], None] = lambda: None,
    ) -> None:
        """Items of ``max_size`` together are computed together. ``check_device`` is called after a
        failure that is no caller's; if it raises, the engine ends.
        """
        self.metrics = WorkMetrics()
        self.thread = EngineThread[Work](name, self, num_threads=num_threads, watchdog_s=watchdog_s)
        self.num_running = 0  # requests of the current step
        self._max_size, self._check_device = max_size, check_device
        self._waiting: deque[Entry] = deque()  # each request with its next item

    @abstractmethod
    def prepare(self) -> None:
        """Loads the model, on the engine's thread."""

    @abstractmethod
    def compute(self, items: Sequence[Any]) -> Sequence[Any]:
        """A result, or an error of its own, for each item. An exception fails them all: then each
        half is computed by itself, so that only the faulty ones fail.
        """

    @abstractmethod
    def failure(self, item: Any, error: BaseException) -> RuntimeModelError:
        """The caller's error, where ``compute`` failed with this item alone."""

    def size(self, item: Any) -> int:
        return 1

    def key(self, item: Any) -> object:
        """Only items of equal keys are computed together."""
        return None

    def computed(self, items: Sequence[Any], cpu_s: float) -> None:  # noqa: B027, few need it
        """Called after ``compute``, before finished requests are answered."""

    def has_work(self) -> bool:
        return bool(self._waiting)

    def add(self, items: Iterable[Work]) -> None:
        self._waiting.extend((work, 0) for work in items)

    def step(self) -> None:
        taken = self._next_batch()
        self.num_running = sum(map(self._is_wanted, dict.fromkeys(work for work, _ in taken)))
        self._compute(taken)
        self.num_running = 0

    def end(self, items: Iterable[Work], error: Exception | None = None) -> None:
        """Calls ``done`` of each work that has no answer yet, with its results or the error."""
        for work in self.thread.release(items):
            if work.trace:
                work.trace.stages(queue=work.submitted_s, compute=work.started_s)
            try:
                work.done(work.results if error is None else error)
            except Exception as failure:
                text = f"a result could not be handed on: {place(failure)}"
                log.error(text, work.request_id)

    give_up = end

    def _next_batch(self) -> list[Entry]:
        """The next step's items, at least one. Requests take turns, one item each, oldest first, so
        that a batch of a thousand rows or a long document's windows do not delay those of one text.
        """
        taken: list[Entry] = []
        others: list[Entry] = []
        left, waiting, first_key = self._max_size, self._waiting, None
        while waiting:
            work, index = waiting[0]
            item = work.items[index]
            size, key = self.size(item), self.key(item)
            if taken and size > left:
                break
            waiting.popleft()
            if work not in self.thread:  # it has failed, or was given up
                continue
            if taken and key != first_key:
                others.append((work, index))
                continue
            first_key = key
            taken.append((work, index))
            left -= size
            if index + 1 < len(work.items):
                waiting.append((work, index + 1))
        waiting.extendleft(reversed(others))
        return taken

    def _is_wanted(self, work: Work) -> bool:
        """False where the caller has left, which then is answered."""
        now_s = time.monotonic()
        waited_s = now_s - work.submitted_s
        if work.started_s is None:
            work.started_s = now_s
            self.metrics.queue_s.observe(waited_s)
        if now_s - work.asked_s > _ASK_EVERY_S:
            work.asked_s = now_s
            if has_left(work.is_cancelled, waited_s, work.request_id):
                self.end([work], CancelledError("the caller has disconnected"))
        return work in self.thread

    def _compute(self, taken: Sequence[Entry]) -> None:
        """Raises DeviceLostError."""
        taken = [entry for entry in taken if entry[0] in self.thread]
        if not taken:
            return
        items = [work.items[index] for work, index in taken]
        self.thread.renew_step()
        began_s, began_cpu_s = time.monotonic(), time.thread_time()
        try:
            results = self.compute(items)
        except BaseException as error:  # a panic of the tokenizers' Rust is no Exception
            self._compute_apart(taken, items[0], error)
            return
        self.metrics.step_s.observe(time.monotonic() - began_s)
        self.metrics.batch_size.observe(len(items))
        for (work, _), result in zip(taken, results, strict=True):
            if isinstance(result, Exception):
                self.end([work], result)
            else:
                work.results.append(result)
        self.thread.end_step()
        self.computed(items, time.thread_time() - began_cpu_s)
        works = dict.fromkeys(work for work, _ in taken)
        self.end(work for work in works if len(work.results) == len(work.items))

    def _compute_apart(self, taken: Sequence[Entry], first: Any, error: BaseException) -> None:
        told = self.failure(first, error)
        is_callers = isinstance(told, RequestError)
        if not is_callers:
            self._check_device()
        if len(taken) > 1:
            half = len(taken) // 2
            self._compute(taken[:half])
            self._compute(taken[half:])
            return
        [(work, _)] = taken
        if not is_callers:
            # The error may quote the request: only its caller gets the text.
            log.error(f"computing an input failed: {place(error)}", work.request_id)
        self.end([work], told)
