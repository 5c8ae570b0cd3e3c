"""Gives torch, on an engine's thread, the number of threads that its steps are fastest with."""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch

from hf_triton.runtime import log
from hf_triton.runtime.engine.thread_count import ThreadCount
from hf_triton.runtime.metrics.publishing import Family, one_number

_SAY_EVERY_S = 60.0
_HELP = "CPU threads that the engine computes with at this moment"


class StepThreads:
    """``num_threads``, and fewer while that is faster.

    All but ``families`` is called on the engine's thread.
    """

    def __init__(self, num_threads: int) -> None:
        self._threads = ThreadCount(num_threads)
        self._num_tokens = 0  # of the step under way
        self._said_s = -_SAY_EVERY_S

    def start(self) -> None:
        """The thread begins."""
        torch.set_num_threads(self._threads.count)

    def computes(self, num_tokens: int) -> None:
        """The step under way computes so many tokens on a CPU. Steps of which nothing is said
        decide nothing.
        """
        self._num_tokens += num_tokens

    def step_took(self, seconds: float) -> None:
        """The step is over; the next one may have another number of threads."""
        threads, num_tokens = self._threads, self._num_tokens
        self._num_tokens = 0
        if not num_tokens:
            return
        before, settled = threads.count, threads.settled
        threads.note(num_tokens, seconds)
        if threads.count != before:
            torch.set_num_threads(threads.count)
        if threads.settled != settled:
            self._say(settled)

    def families(self) -> Iterator[Family]:
        """As Prometheus names it; may be read from any thread."""
        yield one_number("hf_triton_cpu_threads", _HELP, self._threads.settled)

    def _say(self, before: int) -> None:
        now = time.monotonic()
        if now - self._said_s > _SAY_EVERY_S:
            self._said_s = now
            threads = self._threads
            log.info(
                f"computing with {threads.settled} of {threads.most} CPU threads, which is faster "
                f"at the moment than with {before} (said at most every {_SAY_EVERY_S:g} s)"
            )
