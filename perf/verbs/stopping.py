"""Turns signals into KeyboardInterrupt, so that a measurement keeps its results and ends its child
processes, which would otherwise outlive the terminal.
"""

from __future__ import annotations

import os
import signal
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn


@contextmanager
def stopping_as_interrupts() -> Iterator[None]:
    """SIGTERM, and SIGHUP unless nohup ignores it, raise KeyboardInterrupt in the block."""
    numbers = [signal.SIGTERM, signal.SIGHUP]
    before = {number: signal.getsignal(number) for number in numbers}
    if before[signal.SIGHUP] is signal.SIG_IGN:
        numbers.remove(signal.SIGHUP)
    for number in numbers:
        signal.signal(number, _interrupt)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, before[number])


def _interrupt(number: int, _: FrameType | None) -> NoReturn:
    if number == signal.SIGHUP:
        _leave_terminal()
    raise KeyboardInterrupt


def _leave_terminal() -> None:
    """Redirects output away from a closed terminal, where a write would fail."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, AttributeError, ValueError):
            if stat.S_ISCHR(os.fstat(stream.fileno()).st_mode):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
