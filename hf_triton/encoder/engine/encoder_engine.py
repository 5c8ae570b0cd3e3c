"""Computes waiting encodings in batches, as the steps of an engine's thread. Knows neither Triton
nor the meaning of results.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from hf_triton.runtime import log
from hf_triton.runtime.engine import reception
from hf_triton.runtime.engine.thread import EngineThread
from hf_triton.runtime.errors import NO_NUMBERS, EngineError, place, reason

from ..runners.encoder_runner import Runner
from ..texts.encoding import Encoding
from .metrics import EncoderMetrics

# Sending an answer takes as long, most of it waiting for the server.
SEND_S = 0.0003

Array = npt.NDArray[Any]
Work = reception.Work[Encoding, Array]
Reduced = Sequence[torch.Tensor] | torch.Tensor
Reduce = Callable[[Sequence[torch.Tensor], Sequence[Encoding]], Reduced]


class EncoderEngine:
    """``make_runner`` is called on the engine's thread; ``reduce`` is the task's. ``check_device``
    is called after a failed step; if it raises, the engine ends. ``sends_itself``: answers should
    be sent on the engine's thread.
    """

    sends_itself = False

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
        self._make_runner, self.reduce = make_runner, reduce
        self._check_device = check_device
        self._queue = WaitingQueue(max_num_batched_tokens)
        self._finish = partial(reception.finish, self.thread)
        self._begin = partial(reception.begin, self.thread, queue_time=self.metrics.queue_s.observe)

    def prepare(self) -> None:
        self.runner = self._make_runner()

    def has_work(self) -> bool:
        return bool(self._queue)

    def add(self, submitted: Iterable[Work]) -> None:
        self._queue.add(submitted)

    def step(self) -> None:
        taken = self._queue.take()
        # A caller is asked whether it has left when its first encoding is computed.
        gone = {
            work
            for work in dict.fromkeys(work for work, _ in taken)
            if work not in self.thread or not (work.started or self._begin(work))
        }
        if gone:
            self._queue.remove(gone)
            taken = [entry for entry in taken if entry[0] not in gone]
        if taken:
            self._compute(taken)

    def end(self, unfinished: Iterable[Work], error: Exception) -> None:
        self._finish(unfinished, error)

    give_up = end

    def _compute(self, taken: Sequence[tuple[Work, int]]) -> None:
        """Runs one forward of all encodings; if it fails, each half by itself, so that only the
        faulty ones fail. Raises DeviceLostError.
        """
        encodings = [work.items[index] for work, index in taken]
        self.thread.renew_step()
        began_s, began_cpu_s = time.monotonic(), time.thread_time()
        try:
            results = self._computed_apart(encodings)
        except Exception as error:
            self._check_device()
            if len(taken) == 1:
                [(work, _)] = taken
                log.error(f"computing an input failed: {place(error)}", work.request_id)
                # The error may quote the request: only its caller gets the text.
                text = f"computing failed: {type(error).__name__}: {reason(error)}"
                self._drop(work, EngineError(text))
                return
            half = len(taken) // 2
            self._compute(taken[:half])
            self._compute(taken[half:])
            return
        self.metrics.computed(encodings, time.monotonic() - began_s)
        for (work, _), (result, is_finite) in zip(taken, results, strict=True):
            work.results.append(result)
            if not is_finite:
                self._drop(work, EngineError(NO_NUMBERS))
        self.thread.end_step()
        self.sends_itself = self._sends_itself(len(taken), time.thread_time() - began_cpu_s)
        self._finish(dict.fromkeys(work for work, _ in taken if not work.num_left))

    def _sends_itself(self, num_computed: int, cpu_s: float) -> bool:
        """Whether to send answers on this thread: for a single answer, or after a step that took
        less time than sending will. A sender thread would then take the interpreter lock from the
        thread that reads requests, and fewer of them would be computed together.
        """
        self.thread.take_in()
        return (num_computed == 1 and not self._queue) or cpu_s < num_computed * SEND_S

    def _computed_apart(self, encodings: Sequence[Encoding]) -> list[tuple[Array, bool]]:
        """As ``_computed``; texts with NaN are repeated alone, because a mask hides no NaN."""
        found = self._computed(encodings)
        if len(encodings) == 1:
            return found
        return [
            one if one[1] else self._computed([encoding])[0]
            for one, encoding in zip(found, encodings, strict=True)
        ]

    @torch.inference_mode()
    def _computed(self, encodings: Sequence[Encoding]) -> list[tuple[Array, bool]]:
        """A float32 array for each encoding, and whether all of its numbers are finite."""
        reduced = self.reduce(self.runner.forward(encodings), encodings)
        assert len(reduced) == len(encodings), "a task's reduce keeps one of each"
        if reduced[0].device.type == "cpu" and self.runner.follows_threads:
            self.thread.cpu_threads.computes(sum(map(len, encodings)))
        if isinstance(reduced, torch.Tensor):
            rows = reduced.float().cpu().numpy()
            return list(zip(rows, np.isfinite(rows).all(axis=-1).tolist(), strict=True))
        return [(part, bool(np.isfinite(part).all())) for part in _arrays(reduced)]

    def _drop(self, work: Work, error: Exception) -> None:
        self._queue.remove([work])
        self._finish([work], error)


def _arrays(parts: Sequence[torch.Tensor]) -> list[Array]:
    """The outputs as float32 on the CPU, copied from a GPU at once."""
    if parts[0].device.type != "cpu":
        shapes = [part.shape for part in parts]
        flat = torch.cat([part.reshape(-1) for part in parts]).float().cpu()
        flats = flat.split([shape.numel() for shape in shapes])
        parts = [part.view(shape) for part, shape in zip(flats, shapes, strict=True)]
    return [part.float().numpy() for part in parts]


class WaitingQueue:
    """Requests with encodings to compute. They take turns, one encoding each, oldest first, so that
    a batch of a thousand rows or a long document's windows do not delay requests of one text.
    """

    def __init__(self, max_num_tokens: int) -> None:
        self._max_num_tokens = max_num_tokens
        self._queue: deque[tuple[Work, int]] = deque()  # (request, next encoding)

    def __bool__(self) -> bool:
        return bool(self._queue)

    def add(self, requests: Iterable[Work]) -> None:
        """Each request has at least one encoding."""
        self._queue.extend((request, 0) for request in requests)

    def take(self) -> list[tuple[Work, int]]:
        """The next step: (request, index of its encoding), at most ``max_num_tokens`` together,
        but at least one.
        """
        taken: list[tuple[Work, int]] = []
        num_left = self._max_num_tokens
        while self._queue:
            request, index = self._queue[0]
            num_tokens = len(request.items[index])
            if taken and num_tokens > num_left:
                break
            self._queue.popleft()
            taken.append((request, index))
            num_left -= num_tokens
            if index + 1 < len(request.items):
                self._queue.append((request, index + 1))
        return taken

    def remove(self, requests: Iterable[Work]) -> None:
        gone = set(requests)
        self._queue = deque(entry for entry in self._queue if entry[0] not in gone)
