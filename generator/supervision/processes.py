"""Ends processes of a model, and waits for their end. A number that another process has by now is
left alone: only those that the model still has are touched. A process that has ended, but that
Triton has not asked about, is gone: psutil's wait_procs would wait for it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable

_POLL_S = 0.1

Living = Callable[[str], frozenset[int]]  # the processes that one of Triton's models has


def kill(living: Living, folder: str, pids: frozenset[int]) -> None:
    """Ends those of ``pids`` that the model still has, at once."""
    for pid in pids & living(folder):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def wait_for_end(living: Living, folder: str, pids: frozenset[int], timeout_s: float) -> bool:
    """Whether the model has none of ``pids`` any more, before ``timeout_s`` is over."""
    deadline = time.monotonic() + timeout_s
    while pids & living(folder):
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True


def end_later(living: Living, folder: str, pids: frozenset[int], grace_s: float) -> None:
    """Gives ``pids`` a while to end by themselves, then ends them."""
    if not wait_for_end(living, folder, pids, grace_s):
        kill(living, folder, pids)
