"""Computes what waits together, as the steps of an engine's thread.

Knows neither Triton nor what the results mean.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from hf_runtime import log
from hf_runtime.engine import work as works
from hf_runtime.engine.thread import EngineThread
from hf_runtime.errors import EngineError, place, reason
from hf_runtime.request.request_ids import labelled

from ..runners.runner import Runner
from ..texts.encoding import Encoding
from .metrics import EncoderMetrics
from .waiting_line import WaitingLine

Array = npt.NDArray[Any]
Work = works.Work[Encoding, Array]
Reduce = Callable[[Sequence[torch.Tensor], Sequence[Encoding]], Sequence[torch.Tensor]]


class EncoderEngine:
    """``make_runner`` builds the runner, on the engine's thread; ``reduce`` is the task's.

    ``check_device`` is asked after a failed step; the engine ends where that raises.
    """

    def __init__(
        self,
        make_runner: Callable[[], Runner],
        reduce: Reduce,
        *,
        max_num_batched_tokens: int,
        num_threads: int,
        watchdog_s: float = 300.0,
        check_device: Callable[[], None] = lambda: None,
    ) -> None:
        self.metrics = EncoderMetrics()
        self.thread: EngineThread[Work] = EngineThread(
            "encoder", self, num_threads=num_threads, watchdog_s=watchdog_s
        )
        self._make_runner = make_runner
        self._reduce = reduce
        self._check_device = check_device
        self._line: WaitingLine[Work] = WaitingLine(max_num_batched_tokens)
        self._finish = partial(works.finish, self.thread)
        self._begin = partial(works.begin, self.thread, queue_time=self.metrics.queue_s.observe)

    def prepare(self) -> None:
        """Makes the runner."""
        self.runner = self._make_runner()

    def has_work(self) -> bool:
        """Whether encodings wait."""
        return bool(self._line)

    def add(self, submitted: Iterable[Work]) -> None:
        """Puts work at the end of the line."""
        self._line.add(submitted)

    def step(self) -> None:
        """Computes the next encodings in line, but of what was given up or whose caller left."""
        taken = self._line.take()
        gone = {work for work in dict.fromkeys(work for work, _ in taken) if self._is_gone(work)}
        if gone:
            self._line.remove(gone)
            taken = [entry for entry in taken if entry[0] not in gone]
        if taken:
            self._compute(taken)

    def end(self, unfinished: Iterable[Work], error: Exception) -> None:
        """Answers work with the error."""
        self._finish(unfinished, error)

    give_up = end

    def _is_gone(self, work: Work) -> bool:
        """Whether nobody waits for it any more; its caller is asked after when it begins."""
        return work not in self.thread or not (work.started or self._begin(work))

    def _compute(self, taken: Sequence[tuple[Work, int]]) -> None:
        """One forward of all; where that fails, one of each half, so that only those fail that are
        to blame. Raises DeviceLostError where all would.
        """
        encodings = [work.items[index] for work, index in taken]
        began_s = time.monotonic()
        try:
            results = self._computed(encodings)
        except Exception as error:
            self._check_device()
            if len(taken) == 1:
                self._failed(taken[0][0], error)
                return
            half = len(taken) // 2
            self._compute(taken[:half])
            self._compute(taken[half:])
            return
        self.metrics.computed(encodings, time.monotonic() - began_s)
        for (work, _), result in zip(taken, results, strict=True):
            self._note(work, result)

    def _note(self, work: Work, result: Array) -> None:
        """Keeps one encoding's result; the last one ends the work."""
        if not np.isfinite(result).all():
            self._drop(work, EngineError("the model computed a score that is no number"))
        work.results.append(result)
        if not work.num_left:
            self._finish([work])

    @torch.inference_mode()
    def _computed(self, encodings: Sequence[Encoding]) -> list[Array]:
        """float32 arrays, one for each encoding."""
        reduced = self._reduce(self.runner.forward(encodings), encodings)
        assert len(reduced) == len(encodings), "a task's reduce keeps one of each"
        if reduced and reduced[0].device.type == "cpu":
            if self.runner.follows_threads:
                self.thread.cpu_threads.computes(sum(map(len, encodings)))
        elif reduced:
            shapes = [part.shape for part in reduced]
            flat = torch.cat([part.reshape(-1) for part in reduced]).float().cpu()
            parts = flat.split([shape.numel() for shape in shapes])
            reduced = [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]
        return [part.float().numpy() for part in reduced]

    def _failed(self, work: Work, error: Exception) -> None:
        log.error(labelled(work.request_id, f"computing an input failed: {place(error)}"))
        # The text may quote the caller's: it goes to the caller alone.
        self._drop(work, EngineError(f"computing failed: {type(error).__name__}: {reason(error)}"))

    def _drop(self, work: Work, error: Exception) -> None:
        self._line.remove([work])
        self._finish([work], error)
