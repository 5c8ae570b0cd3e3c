"""The thread that owns the model: takes what waits, computes it together, hands the results on.

Everything with tensors happens on this thread: in one process only one may run parallel torch
operations. Knows neither Triton nor what the results mean.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch
from hf_runtime import log
from hf_runtime.engine.watchdog import Watchdog
from hf_runtime.errors import (
    CancelledError,
    DeviceLostError,
    EngineError,
    OverloadedError,
    place,
    reason,
)
from hf_runtime.request.open_requests import has_left
from hf_runtime.request.request_ids import labelled

from ..runners.runner import Runner
from ..texts.encoding import Encoding
from .metrics import EncoderMetrics
from .waiting_line import WaitingLine
from .work import Array, Unfinished, Work

_STOP_GRACE_S = 5.0  # for the step under way: one of max_num_batched_tokens takes a second or two
Reduce = Callable[[Sequence[torch.Tensor], Sequence[Encoding]], Sequence[torch.Tensor]]


class EncoderEngine:
    """``make_runner`` builds the runner, on the engine's thread; ``reduce`` is the task's.

    ``check_device`` is asked after a failed step; the engine ends where that raises. Requests of a
    step that takes longer than ``watchdog_s`` fail, and so do others until it ends.
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
        self._make_runner = make_runner
        self._reduce = reduce
        self._check_device = check_device
        self._num_threads = num_threads
        self._line: WaitingLine[Work] = WaitingLine(max_num_batched_tokens)
        self._condition = threading.Condition()
        self._unfinished = Unfinished()
        self._submitted: list[Work] = []  # these three are guarded by the condition
        self._stopping = False
        self._ended = False
        self._ready = threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="encoder-engine", daemon=True)
        self._watchdog = Watchdog(watchdog_s, self._give_up)
        self.runner: Runner | None = None

    @property
    def is_healthy(self) -> bool:
        """Whether the engine takes work and its thread gets on with it."""
        return not (self._ended or self._stopping or self._watchdog.is_stuck)

    def start(self) -> None:
        """Starts the thread, waits until it can compute; raises what preparing raised."""
        self._thread.start()
        self._ready.wait()
        if self._failure is not None:
            self._thread.join()
            raise self._failure
        self._watchdog.start()

    def check_running(self) -> None:
        """Raises OverloadedError where the engine is stopping, its thread has died or is stuck."""
        if self._stopping:
            raise OverloadedError("the model is being unloaded: try again later")
        if self._ended:
            raise OverloadedError("the engine died, load the model anew: try again later")
        if self._watchdog.is_stuck:
            raise OverloadedError("the engine is stuck in a step: try again later")

    def submit(self, work: Work) -> None:
        """Queues work. Raises OverloadedError as ``check_running`` does."""
        with self._condition:
            self.check_running()
            self._submitted.append(work)
            self._unfinished.add(work)
            self._condition.notify()

    def stop(self, grace_s: float = _STOP_GRACE_S) -> None:
        """Ends the thread after its step; what waits fails with OverloadedError, and so does the
        step where it takes longer than ``grace_s``: it is left to itself.
        """
        with self._condition:
            self._stopping = True
            self._condition.notify()
        if self._thread.is_alive():
            self._thread.join(grace_s)
        if self._thread.is_alive():
            log.error(
                f"a step did not end within {grace_s:g} s of the unload: it is left to itself"
            )
        self._watchdog.stop()
        self._end("the model was unloaded before it answered")

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
                self._watched_step(self.runner)
        except DeviceLostError as error:
            log.error(f"the encoder engine ends: {error}")
            why = f"the engine died: {error}"
        except BaseException as error:
            log.error(f"the encoder engine's thread died: {place(error)}")
            why = f"the engine died: {type(error).__name__}"
        self._line.clear()
        self._end(why)

    def _wait(self) -> bool:
        """Takes what was submitted; False when the engine is to stop."""
        with self._condition:
            while not (self._submitted or self._line or self._stopping):
                self._condition.wait()
            submitted, self._submitted = self._submitted, []
            self._line.add(submitted)
            return not self._stopping

    def _watched_step(self, runner: Runner) -> None:
        self._watchdog.begin_step()
        try:
            self._step(runner)
        finally:
            self._watchdog.end_step()

    def _step(self, runner: Runner) -> None:
        # Those of a step that was given up have been answered.
        taken = [entry for entry in self._line.take() if entry[0] in self._unfinished]
        left = self._start({id(work): work for work, _ in taken if not work.started}.values())
        taken = [(work, index) for work, index in taken if id(work) not in left]
        if taken:
            self._compute(runner, taken)

    def _compute(self, runner: Runner, taken: Sequence[tuple[Work, int]]) -> None:
        """One forward of all; where that fails, one of each half, so that only those fail that are
        to blame. Raises DeviceLostError where all would.
        """
        encodings = [work.encodings[index] for work, index in taken]
        began_s = time.monotonic()
        try:
            results = self._computed(runner, encodings)
        except Exception as error:
            self._check_device()
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
            self._unfinished.finish(work, [work.results[i] for i in range(len(work.encodings))])

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
            if has_left(work.is_cancelled, waited_s, work.request_id):
                left.append(work)
        self._drop(left, CancelledError("the caller has left"))
        return set(map(id, left))

    def _failed(self, work: Work, error: Exception) -> None:
        log.error(labelled(work.request_id, f"computing an input failed: {place(error)}"))
        # The text may quote the caller's: it goes to the caller alone.
        text = f"computing failed: {type(error).__name__}: {reason(error)}"
        self._drop([work], EngineError(text))

    def _drop(self, works: Sequence[Work], error: Exception) -> None:
        if not works:
            return
        self._line.remove(works)
        for work in works:
            self._unfinished.finish(work, error)

    def _give_up(self, stuck_s: float) -> None:
        """Called by the watchdog: nobody waits for a step that may never end."""
        text = f"the engine is stuck: its step takes longer than {stuck_s:g} s (watchdog_s)"
        log.error(text)
        self._unfinished.fail_all(OverloadedError(f"{text}: try again later"))

    def _end(self, why: str) -> None:
        with self._condition:
            self._ended = True
            self._submitted.clear()
        self._unfinished.fail_all(OverloadedError(f"{why}: try again later"))
