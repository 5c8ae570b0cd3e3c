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


class OpenAnswers:
    """Answers whose sequences ``engine`` computes."""

    def __init__(self, engine: Any) -> None:
        # A quarter of the memory that is free now, when the model is loaded.
        self._engine, self._max_bytes = engine, free_bytes(torch.device("cpu")) // 4
        self._lock = threading.Lock()
        self._open: dict[Any, int] = {}  # the bytes of each one's sources
        self._watch = CancellationWatch(self._cancel_left)

    def submit(self, answer: Any, num_bytes: int) -> None:
        """Submits an answer's sequences; raises what the engine refuses them with, and
        OverloadedError where sources take too much memory: those of one answer are always taken.
        """
        with self._lock:
            taken = sum(self._open.values()) if num_bytes else 0
            if taken and taken + num_bytes > self._max_bytes:
                raise OverloadedError(
                    f"the images and sounds of open requests take {taken // _MIB} MiB, "
                    f"of {self._max_bytes // _MIB} allowed: try again later"
                )
            self._open[answer] = num_bytes
        try:
            self._engine.submit(answer.sequences)
        except BaseException:
            self._forget(answer)
            raise
        self._watch.wake()

    def closed(self, answer: Any) -> None:
        """Forgets an answered request, and cancels what is still computed for it."""
        self._forget(answer)
        unfinished = [one for one in answer.sequences if one.finish_reason is None]
        if unfinished:
            self._engine.cancel(unfinished)

    def stop(self) -> None:
        self._watch.close()

    def _forget(self, answer: Any) -> None:
        with self._lock:
            self._open.pop(answer, None)

    def _cancel_left(self) -> int:
        """Cancels the sequences of callers that left; returns the number of open answers."""
        with self._lock:
            answers = list(self._open)
        for answer in answers:
            if not answer.is_closed and answer.is_cancelled():
                self._engine.cancel(answer.sequences)
        return len(answers)
