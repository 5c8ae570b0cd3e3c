"""The thread that owns the model: takes what waits, computes it together, hands the results on.

Everything with tensors happens on this thread: in one process only one may run parallel torch
operations. Knows neither Triton nor what the results mean.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from hf_runtime import log
from hf_runtime.errors import CancelledError, EngineError, OverloadedError, place, reason

from .encoder_metrics import EncoderMetrics
from .encoding import Encoding
from .runner import Runner
from .waiting_line import WaitingLine

Array = npt.NDArray[Any]
_ASKED_AFTER_S = 0.05
Reduce = Callable[[Sequence[torch.Tensor], Sequence[Encoding]], Sequence[torch.Tensor]]


@dataclass(eq=False)
class Work:
    """A request's encodings, and where their results go: ``done`` is called exactly once, on the
    engine's thread, with an array for each encoding or with an error.
    """

    encodings: Sequence[Encoding]
    done: Callable[[list[Array] | Exception], None]
    is_cancelled: Callable[[], bool]
    submitted_s: float = field(default_factory=time.monotonic)
    started: bool = False
    ended: bool = False
    results: dict[int, Array] = field(default_factory=dict)


class EncoderEngine:
    """``make_runner`` builds the runner, on the engine's thread; ``reduce`` is the task's."""

    def __init__(
        self,
        make_runner: Callable[[], Runner],
        reduce: Reduce,
        *,
        max_num_batched_tokens: int,
        num_threads: int,
    ) -> None:
        self.metrics = EncoderMetrics()
        self._make_runner = make_runner
        self._reduce = reduce
        self._num_threads = num_threads
        self._line: WaitingLine[Work] = WaitingLine(max_num_batched_tokens)
        self._condition = threading.Condition()
        self._submitted: list[Work] = []  # these two are guarded by the condition
        self._stopping = False
        self._ended = False
        self._ready = threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="encoder-engine", daemon=True)
        self.runner: Runner | None = None

    @property
    def is_healthy(self) -> bool:
        """Whether the engine takes work and its thread is alive."""
        return not (self._ended or self._stopping)

    def start(self) -> None:
        """Starts the thread, waits until it can compute; raises what preparing raised."""
        self._thread.start()
        self._ready.wait()
        if self._failure is not None:
            self._thread.join()
            raise self._failure

    def check_running(self) -> None:
        """Raises OverloadedError where the engine is stopping or its thread has died."""
        if self._stopping:
            raise OverloadedError("the model is being unloaded: try again later")
        if self._ended:
            raise OverloadedError("the engine died, load the model anew: try again later")

    def submit(self, work: Work) -> None:
        """Queues work. Raises OverloadedError as ``check_running`` does."""
        with self._condition:
            self.check_running()
            self._submitted.append(work)
            self._condition.notify()

    def stop(self) -> None:
        """Ends the thread after its step; what waits fails with OverloadedError."""
        with self._condition:
            self._stopping = True
            self._condition.notify()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        torch.set_num_threads(self._num_threads)
        try:
            self.runner = self._make_runner()
        except Exception as error:
            self._failure = error  # start() raises it
            return
        finally:
            self._ready.set()
        why = "the model was unloaded before it answered"
        try:
            while self._wait():
                self._step(self.runner)
        except BaseException as error:
            log.error(f"the encoder engine's thread died: {place(error)}")
            why = f"the engine died: {type(error).__name__}"
        self._end(OverloadedError(f"{why}: try again later"))

    def _wait(self) -> bool:
        """Takes what was submitted; False when the engine is to stop."""
        with self._condition:
            while not (self._submitted or self._line or self._stopping):
                self._condition.wait()
            submitted, self._submitted = self._submitted, []
            self._line.add(submitted)
            return not self._stopping

    def _step(self, runner: Runner) -> None:
        taken = self._line.take()
        left = self._start({id(work): work for work, _ in taken if not work.started}.values())
        taken = [(work, index) for work, index in taken if id(work) not in left]
        if taken:
            self._compute(runner, taken)

    def _compute(self, runner: Runner, taken: Sequence[tuple[Work, int]]) -> None:
        """One forward of all; where that fails, one of each half, so that only those fail that are
        to blame.
        """
        encodings = [work.encodings[index] for work, index in taken]
        began_s = time.monotonic()
        try:
            results = self._computed(runner, encodings)
        except Exception as error:
            if len(taken) == 1:
                self._failed(taken[0][0], error)
                return
            half = len(taken) // 2
            self._compute(runner, taken[:half])
            self._compute(runner, taken[half:])
            return
        self.metrics.computed(encodings, time.monotonic() - began_s)
        for (work, index), result in zip(taken, results, strict=True):
            self._note(work, index, result)

    def _note(self, work: Work, index: int, result: Array) -> None:
        """Keeps one encoding's result; the last one ends the work."""
        if not np.isfinite(result).all():
            self._drop([work], EngineError("the model computed a score that is no number"))
        work.results[index] = result
        if len(work.results) == len(work.encodings):
            _finish(work, [work.results[i] for i in range(len(work.encodings))])

    @torch.inference_mode()
    def _computed(self, runner: Runner, encodings: Sequence[Encoding]) -> list[Array]:
        """float32 arrays, one for each encoding."""
        reduced = self._reduce(runner.forward(encodings), encodings)
        assert len(reduced) == len(encodings), "a task's reduce keeps one of each"
        if reduced and reduced[0].device.type != "cpu":
            shapes = [part.shape for part in reduced]
            flat = torch.cat([part.reshape(-1) for part in reduced]).float().cpu()
            parts = flat.split([shape.numel() for shape in shapes])
            reduced = [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]
        return [part.float().numpy() for part in reduced]

    def _start(self, works: Iterable[Work]) -> set[int]:
        """Notes when work begins; ends what its caller has left and returns those."""
        left: list[Work] = []
        now = time.monotonic()
        for work in works:
            work.started = True
            waited_s = now - work.submitted_s
            self.metrics.queue_s.observe(waited_s)
            if has_left(work.is_cancelled, waited_s):
                left.append(work)
        self._drop(left, CancelledError("the caller has left"))
        return set(map(id, left))

    def _failed(self, work: Work, error: Exception) -> None:
        log.error(f"computing an input failed: {place(error)}")
        # The text may quote the caller's: it goes to the caller alone.
        text = f"computing failed: {type(error).__name__}: {reason(error)}"
        self._drop([work], EngineError(text))

    def _drop(self, works: Sequence[Work], error: Exception) -> None:
        if not works:
            return
        self._line.remove(works)
        for work in works:
            _finish(work, error)

    def _end(self, error: Exception) -> None:
        with self._condition:
            self._ended = True
            submitted, self._submitted = self._submitted, []
        unfinished = {id(work): work for work in [*self._line.clear(), *submitted]}
        for work in unfinished.values():
            _finish(work, error)


def _finish(work: Work, result: list[Array] | Exception) -> None:
    """Calls ``done``, once; what that raises is not the others' end."""
    if work.ended:
        return
    work.ended = True
    try:
        work.done(result)
    except Exception as error:
        log.error(f"a result could not be handed on: {place(error)}")


def has_left(is_cancelled: Callable[[], bool], waited_s: float) -> bool:
    """Whether nobody waits for an answer any more; a server that can't tell is taken for a no."""
    # To ask is a message to the server and back: not for what is answered at once.
    if waited_s < _ASKED_AFTER_S:
        return False
    try:
        return is_cancelled()
    except Exception as error:
        log.warn(f"could not ask whether a caller has left: {place(error)}")
        return False
