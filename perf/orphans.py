"""Has the kernel end a process that we started, should we be killed and no longer end it."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


def ends_with_us(number: int) -> Callable[[], None] | None:
    """A ``preexec_fn``: the process gets signal ``number`` when the thread that started it is gone,
    so start it from one that lasts. None where the system has no such thing.
    """
    libc = _LIBC
    if libc is None:
        return None

    def ask() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, number)

    return ask
