"""Kills processes of a model, and waits for their end.

Only processes that the model still has are killed: another process may have got the number of one
that ended. A zombie counts as ended; psutil's wait_procs would wait until Triton reaps it.
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
    """Kills those of ``pids`` that the model still has."""
    for pid in pids & living(folder):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def wait_for_end(living: Living, folder: str, pids: frozenset[int], timeout_s: float) -> bool:
    """Waits until the model has none of ``pids`` any more; False after ``timeout_s``."""
    deadline = time.monotonic() + timeout_s
    while pids & living(folder):
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True


def end_later(living: Living, folder: str, pids: frozenset[int], grace_s: float) -> None:
    """Waits ``grace_s`` for ``pids`` to end by themselves, then kills them."""
    if not wait_for_end(living, folder, pids, grace_s):
        kill(living, folder, pids)
