"""Calls the pipeline with waiting work, as the steps of an engine's thread. Requests with equal
parameters share a call where batches are wanted; long requests take turns with the others. Knows
neither Triton nor JSON.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from hf_triton.runtime import log
from hf_triton.runtime.engine import work as works
from hf_triton.runtime.engine.thread import EngineThread
from hf_triton.runtime.errors import RequestError, place
from hf_triton.runtime.request.request_ids import labelled

from .calling import PipelineCall
from .pipeline_metrics import PipelineMetrics


@dataclass(eq=False)
class Work(works.Work[Any, Any]):
    """Items of one request with their parameters; ``key`` is equal where the parameters are."""

    parameters: Mapping[str, Any] = field(default_factory=dict)
    key: str = ""


class PipelineEngine:
    """``load`` returns the call; it runs on the engine's thread, like every method.
    ``check_device`` is called after a call failed through no caller's fault; the engine ends if it
    raises.
    """

    def __init__(
        self,
        load: Callable[[], PipelineCall],
        *,
        batch_size: int,
        num_threads: int,
        watchdog_s: float = 1800.0,
        check_device: Callable[[], None] = lambda: None,
    ) -> None:
        self.metrics = PipelineMetrics()
        self.thread: EngineThread[Work] = EngineThread(
            "pipeline", self, num_threads=num_threads, watchdog_s=watchdog_s
        )
        self._load, self._batch_size, self._check_device = load, batch_size, check_device
        self._waiting: deque[Work] = deque()
        self._finish = partial(works.finish, self.thread)
        self._begin = partial(
            works.begin, self.thread, queue_time=self.metrics.queue_time_s.observe
        )
        self.num_running = 0  # requests of the current call

    def prepare(self) -> None:
        self._call = self._load()

    def has_work(self) -> bool:
        return bool(self._waiting)

    def add(self, submitted: Iterable[Work]) -> None:
        """Puts work behind what waits."""
        self._waiting.extend(submitted)

    def step(self) -> None:
        """Makes one call for the oldest work; the rest of it goes to the end of the queue."""
        taken = self._next(self._batch_size)
        self.num_running = len(taken)
        going = [
            (work, count) for work, count in taken if work in self.thread and self._begin(work)
        ]
        ready: list[tuple[Work, Any]] = []
        for work, count in going:
            start = len(work.results)
            chunk = list(work.items[start : start + count])
            if self._checked(work, chunk, start):
                ready += [(work, item) for item in chunk]
        if ready:
            self._compute(ready)
        self._finish(work for work, _ in going if not work.num_left)
        self._waiting.extend(work for work, _ in going if work in self.thread)
        self.num_running = 0

    def end(self, unfinished: Iterable[Work], error: Exception) -> None:
        self._finish(unfinished, error)

    give_up = end

    def _next(self, num_items: int) -> list[tuple[Work, int]]:
        """The oldest works with the parameters of the first one; others stay queued."""
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

    def _checked(self, work: Work, chunk: list[Any], start: int) -> bool:
        for index, item in enumerate(chunk, start):
            try:
                self._call.check(item, work.parameters)
            except BaseException as error:  # a panic of the tokenizers' Rust is no Exception
                self._finish([work], self._told(work, index, error))
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
                self._finish([work], self._told(work, len(work.results), error))
                return
            self._compute_alone(ready)
            return
        if self._call.is_on_cpu:
            self.thread.cpu_threads.computes(len(ready))
        self.metrics.batch_size.observe(len(ready))
        self.metrics.step_s.observe(time.monotonic() - began_s)
        for (work, _), result in zip(ready, results, strict=True):
            work.results.append(result)

    def _compute_alone(self, ready: list[tuple[Work, Any]]) -> None:
        """Computes items one by one, so that a bad one does not fail the others."""
        for work, item in ready:
            if work in self.thread:
                self._compute([(work, item)])

    def _told(self, work: Work, index: int, error: BaseException) -> Exception:
        """The caller's error, with the index in a list of inputs."""
        found = self._call.failure(error)
        if not isinstance(found, RequestError):
            text = f"a call of the {self._call.name} pipeline failed: {place(error)}"
            log.error(labelled(work.request_id, text))
            self._check_device()  # else later calls fail while it reports ready
        where = f"input {index}: " if len(work.items) > 1 else ""
        return type(found)(f"{where}{found}")
