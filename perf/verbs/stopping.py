"""What ends a program ends a measurement as a Ctrl-C does: what is measured is kept, what was
started is ended. Else a server or a load would outlive the terminal that they were started from.
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
    """Says nothing more to a terminal that is gone: writing to it would be an error."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, AttributeError, ValueError):
            if stat.S_ISCHR(os.fstat(stream.fileno()).st_mode):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
