"""Follows open requests: bounds the memory of their images and sounds (a small file can become
fifty megabytes of pixels, and requests wait with them), and cancels those of callers that left.
"""

from __future__ import annotations

import threading
from typing import Any

import torch

from hf_triton.runtime.devices.device import free_bytes
from hf_triton.runtime.errors import OverloadedError
from hf_triton.runtime.request.cancellation import CancellationWatch

_MIB = 2**20


class SourceMemory:
    """Counts bytes; any thread may ask."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._lock = threading.Lock()

    def take(self, num_bytes: int) -> None:
        """Counts them; the first are always taken. Raises OverloadedError where it is too much."""
        with self._lock:
            is_too_much = self._num_bytes + num_bytes > self._max_bytes
            if self._num_bytes and num_bytes and is_too_much:
                raise OverloadedError(
                    f"the images and sounds of open requests take {self._num_bytes // _MIB} MiB, "
                    f"of {self._max_bytes // _MIB} allowed: try again later"
                )
            self._num_bytes += num_bytes

    def give(self, num_bytes: int) -> None:
        with self._lock:
            self._num_bytes -= num_bytes


class OpenAnswers:
    """Answers whose sequences ``engine`` computes."""

    def __init__(self, engine: Any) -> None:
        # A quarter of the memory that is free now, when the model is loaded.
        self._engine, self._memory = engine, SourceMemory(free_bytes(torch.device("cpu")) // 4)
        # With the bytes of its sources; changed one key at a time, which is atomic.
        self._open: dict[Any, int] = {}
        self._watch = CancellationWatch(self._cancel_left)

    def submit(self, answer: Any, num_bytes: int) -> None:
        """Submits an answer's sequences; raises what the engine refuses them with."""
        self._memory.take(num_bytes)
        self._open[answer] = num_bytes
        try:
            self._engine.submit(answer.sequences)
        except BaseException:
            self._memory.give(self._open.pop(answer, 0))
            raise
        self._watch.wake()

    def closed(self, answer: Any) -> None:
        """Forgets an answered request, and cancels what is still computed for it."""
        self._memory.give(self._open.pop(answer, 0))
        unfinished = [one for one in answer.sequences if one.finish_reason is None]
        if unfinished:
            self._engine.cancel(unfinished)

    def stop(self) -> None:
        self._watch.close()

    def _cancel_left(self) -> int:
        """Returns how many are open."""
        answers = list(self._open)
        for answer in answers:
            if not answer.is_closed and answer.is_cancelled():
                self._engine.cancel(answer.sequences)
        return len(answers)
