"""The thread that owns the pipeline: takes what waits, calls it, hands the results on.

Everything with tensors happens on this thread: in one process only one may run parallel torch
operations. Requests with equal parameters share a call where batches are wanted; a long one takes
turns with the others. Knows neither Triton nor JSON.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from hf_runtime import log
from hf_runtime.errors import (
    CancelledError,
    LoadError,
    OverloadedError,
    RequestError,
    place,
    reason,
)
from hf_runtime.request.open_requests import has_left
from hf_runtime.request.request_ids import labelled

from .calling import PipelineCall
from .pipeline_metrics import PipelineMetrics


@dataclass(eq=False)
class Work:
    """Items of one request with their parameters; ``key`` is equal where the parameters are.

    ``done`` is called exactly once, on the engine's thread: a result for each item, or an error.
    """

    items: Sequence[Any]
    parameters: Mapping[str, Any]
    key: str
    done: Callable[[list[Any] | Exception], None]
    is_cancelled: Callable[[], bool]
    request_id: str = ""
    submitted_s: float = field(default_factory=time.monotonic)
    results: list[Any] = field(default_factory=list)
    started: bool = False
    ended: bool = False

    @property
    def num_left(self) -> int:
        """Items that no call has taken."""
        return len(self.items) - len(self.results)


class PipelineEngine:
    """``load`` makes the call; it runs on the engine's thread, as all that it does."""

    def __init__(
        self,
        load: Callable[[], PipelineCall],
        *,
        batch_size: int,
        num_threads: int,
    ) -> None:
        self.metrics = PipelineMetrics()
        self._load, self._batch_size, self._num_threads = load, batch_size, num_threads
        self._condition = threading.Condition()
        self._waiting: deque[Work] = deque()  # these four are guarded by the condition
        self._running: list[Work] = []
        self._stop_at_s: float | None = None
        self._ended = False
        self._ready = threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="pipeline-engine", daemon=True)

    @property
    def is_healthy(self) -> bool:
        """Whether the engine takes work and its thread is alive."""
        return not self._ended and self._stop_at_s is None

    @property
    def num_running(self) -> int:
        """Requests that the current call is about."""
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        """Requests that are read and wait."""
        return len(self._waiting)

    def start(self) -> None:
        """Starts the thread and waits until the pipeline is loaded; raises what that raised."""
        self._thread.start()
        self._ready.wait()
        if self._failure is not None:
            self._thread.join()
            raise self._failure

    def check_running(self) -> None:
        """Raises OverloadedError where the engine is stopping or its thread has died."""
        if self._stop_at_s is not None:
            raise OverloadedError("the model is being unloaded: try again later")
        if self._ended:
            raise OverloadedError("the engine died, load the model anew: try again later")

    def submit(self, *works: Work) -> None:
        """Queues all, or none: raises OverloadedError as ``check_running`` does."""
        with self._condition:
            self.check_running()
            self._waiting.extend(works)
            self._condition.notify()

    def stop(self, grace_s: float = 0.0) -> None:
        """Finishes what is here within ``grace_s`` and fails the rest with OverloadedError; a call
        that takes longer is left to itself.
        """
        with self._condition:
            self._stop_at_s = time.monotonic() + grace_s
            self._condition.notify()
        self._thread.join(grace_s + 1.0)
        self._fail_all("the model was unloaded before it answered")

    def _run(self) -> None:
        torch.set_num_threads(self._num_threads)
        try:
            self._call = self._load()
        except Exception as error:
            self._failure = error  # start() raises it
            return
        finally:
            self._ready.set()
        why = "the model was unloaded before it answered"
        try:
            while taken := self._take():
                self._step(taken)
        except BaseException as error:
            log.error(f"the pipeline engine's thread died: {place(error)}")
            why = f"the engine died: {type(error).__name__}"
        self._fail_all(why)

    def _take(self) -> list[tuple[Work, int]]:
        """What the next call is about, (work, number of its items); [] when it is time to stop."""
        with self._condition:
            while not self._waiting and self._stop_at_s is None:
                self._condition.wait()
            if self._stop_at_s is not None and time.monotonic() >= self._stop_at_s:
                return []
            taken = self._next(self._batch_size)
            self._running = [work for work, _ in taken]
            return taken

    def _next(self, num_items: int) -> list[tuple[Work, int]]:
        """Those that waited longest and have the first one's parameters; the others stay."""
        taken: list[tuple[Work, int]] = []
        others: list[Work] = []
        while self._waiting and num_items > 0:
            work = self._waiting.popleft()
            if taken and work.key != taken[0][0].key:
                others.append(work)
                continue
            count = min(work.num_left, num_items)
            taken.append((work, count))
            num_items -= count
        self._waiting.extendleft(reversed(others))
        return taken

    def _step(self, taken: list[tuple[Work, int]]) -> None:
        going = [(work, count) for work, count in taken if self._begin(work)]
        ready: list[tuple[Work, Any]] = []
        for work, count in going:
            start = len(work.results)
            chunk = list(work.items[start : start + count])
            if self._checked(work, chunk, start):
                ready += [(work, item) for item in chunk]
        if ready:
            self._compute(ready)
        for work, _ in going:
            self._finish_or_return(work)
        self._running = []

    def _begin(self, work: Work) -> bool:
        """False where its caller has gone."""
        waited_s = time.monotonic() - work.submitted_s
        if not work.started:
            work.started = True
            self.metrics.queue_time_s.observe(waited_s)
        if has_left(work.is_cancelled, waited_s, work.request_id):
            self._end(work, CancelledError("the caller has left"))
            return False
        return True

    def _checked(self, work: Work, chunk: list[Any], start: int) -> bool:
        for index, item in enumerate(chunk, start):
            try:
                self._call.check(item, work.parameters)
            except BaseException as error:  # a panic of the tokenizers' Rust is no Exception
                self._end(work, self._told(work, index, error))
                return False
        return True

    def _compute(self, ready: list[tuple[Work, Any]]) -> None:
        parameters = ready[0][0].parameters
        began_s = time.monotonic()
        try:
            results = self._call.results([item for _, item in ready], parameters)
        except BaseException as error:
            if len(ready) == 1:
                work = ready[0][0]
                self._end(work, self._told(work, len(work.results), error))
                return
            self._compute_alone(ready)
            return
        self.metrics.batch_size.observe(len(ready))
        self.metrics.step_s.observe(time.monotonic() - began_s)
        for (work, _), result in zip(ready, results, strict=True):
            work.results.append(result)

    def _compute_alone(self, ready: list[tuple[Work, Any]]) -> None:
        """One bad input must not fail its neighbours."""
        for work, item in ready:
            if not work.ended:
                self._compute([(work, item)])

    def _told(self, work: Work, index: int, error: BaseException) -> Exception:
        """The error that the caller reads, with the place in a list of inputs."""
        found = self._call.failure(error)
        if not isinstance(found, RequestError):
            text = f"a call of the {self._call.name} pipeline failed: {place(error)}"
            log.error(labelled(work.request_id, text))
        where = f"input {index}: " if len(work.items) > 1 else ""
        return type(found)(f"{where}{found}")

    def _finish_or_return(self, work: Work) -> None:
        if work.ended:
            return
        if work.num_left == 0:
            self._end(work, None)
            return
        with self._condition:
            self._waiting.append(work)

    def _end(self, work: Work, error: Exception | None) -> None:
        with self._condition:
            if work.ended:
                return
            work.ended = True
        try:
            work.done(work.results if error is None else error)
        except Exception as failure:  # not the others' end
            text = f"a result could not be handed on: {place(failure)}"
            log.error(labelled(work.request_id, text))

    def _fail_all(self, why: str) -> None:
        with self._condition:
            self._ended = True
            left = [*self._waiting, *self._running]
            self._waiting.clear()
        for work in left:
            self._end(work, OverloadedError(f"{why}: try again later"))


def load_failure(error: Exception) -> LoadError:
    """What an operator reads where loading failed for a reason of its own."""
    return LoadError(f"the pipeline failed to load: {type(error).__name__}: {reason(error)}")
