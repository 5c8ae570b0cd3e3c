"""Calls the pipeline with waiting inputs, as the steps of an engine's thread. Requests with equal
parameters share a call where batches are wanted; long requests take turns with the others. Knows
neither Triton nor JSON.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import takewhile
from typing import Any

from hf_triton.runtime import log
from hf_triton.runtime.engine import work as works
from hf_triton.runtime.engine.thread import EngineThread
from hf_triton.runtime.errors import RequestError, place
from hf_triton.runtime.request.request_ids import labelled

from .calling import PipelineCall, PipelineInput
from .pipeline_metrics import PipelineMetrics

Work = works.Work[PipelineInput, Any]


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
        taken = self._next()
        self.num_running = len(taken)
        going = [one for one in taken if one[0] in self.thread and self._begin(one[0])]
        ready = [
            (work, given)
            for work, inputs in going
            if self._checked(work, inputs)
            for given in inputs
        ]
        if ready:
            self._compute(ready)
        self._finish(work for work, _ in going if not work.num_left)
        self._waiting.extend(work for work, _ in going if work in self.thread)
        self.num_running = 0

    def end(self, unfinished: Iterable[Work], error: Exception) -> None:
        self._finish(unfinished, error)

    give_up = end

    def _next(self) -> list[tuple[Work, list[PipelineInput]]]:
        """The next inputs of the oldest works, of those alone whose parameters are the first one's;
        others stay queued.
        """
        taken: list[tuple[Work, list[PipelineInput]]] = []
        others: list[Work] = []
        room = self._batch_size
        while self._waiting and room > 0:
            work = self._waiting.popleft()
            start = len(work.results)
            left = work.items[start : start + room]
            key = taken[0][1][0].key if taken else left[0].key
            if inputs := _alike(left, key):
                taken.append((work, inputs))
                room -= len(inputs)
            else:
                others.append(work)
        self._waiting.extendleft(reversed(others))
        return taken

    def _checked(self, work: Work, inputs: list[PipelineInput]) -> bool:
        for given in inputs:
            try:
                self._call.check(given)
            except BaseException as error:  # a panic of the tokenizers' Rust is no Exception
                self._finish([work], self._told(work, given, error))
                return False
        return True

    def _compute(self, ready: list[tuple[Work, PipelineInput]]) -> None:
        """Makes one call; if it fails, one for each input, so that a bad one fails no other."""
        began_s = time.monotonic()
        try:
            results = self._call.results([given for _, given in ready])
        except BaseException as error:
            if len(ready) == 1:
                [(work, given)] = ready
                self._finish([work], self._told(work, given, error))
                return
            for one in ready:
                if one[0] in self.thread:
                    self._compute([one])
            return
        if self._call.is_on_cpu:
            self.thread.cpu_threads.computes(len(ready))
        self.metrics.batch_size.observe(len(ready))
        self.metrics.step_s.observe(time.monotonic() - began_s)
        for (work, _), result in zip(ready, results, strict=True):
            work.results.append(result)

    def _told(self, work: Work, given: PipelineInput, error: BaseException) -> Exception:
        """The caller's error, with the input's place in a list."""
        found = self._call.failure(error)
        if not isinstance(found, RequestError):
            text = f"a call of the {self._call.name} pipeline failed: {place(error)}"
            log.error(labelled(work.request_id, text))
            self._check_device()  # else later calls fail while it reports ready
        return type(found)(f"{given.where}{found}")


def _alike(inputs: Sequence[PipelineInput], key: str) -> list[PipelineInput]:
    """The first inputs, as far as their parameters have this key."""
    return [*takewhile(lambda given: given.key == key, inputs)]
