"""Threads and signals, also where the machine has no thread left, or the signal no name."""

from __future__ import annotations

import contextlib
import errno
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any


def start_thread(work: Callable[..., object], *args: Any) -> threading.Thread:
    """Starts a thread that does not outlive the process. Raises OSError where there is none left,
    as in a container that is limited to some hundreds.
    """
    thread = threading.Thread(target=work, args=args, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        raise OSError(errno.EAGAIN, str(error)) from None
    return thread


def start_threads(work: Callable[[], object], most: int) -> list[threading.Thread]:
    """Starts as many as there are left, to share out work; where that is none, does it here."""
    threads: list[threading.Thread] = []
    with contextlib.suppress(OSError):
        while len(threads) < most:
            threads.append(start_thread(work))
    if not threads:
        work()
    return threads


@contextlib.contextmanager
def signals_as_interrupts(*numbers: signal.Signals) -> Iterator[None]:
    """While the block runs, these signals raise KeyboardInterrupt; SIGHUP does not where it is
    ignored: nohup has started us.
    """
    before = {number: signal.getsignal(number) for number in numbers}
    if before.get(signal.SIGHUP) is signal.SIG_IGN:
        del before[signal.SIGHUP]
    for number in before:
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def signal_name(number: int) -> str:
    """The name of a signal, as ``SIGKILL``."""
    try:
        return signal.Signals(number).name
    except ValueError:  # one of the real-time signals
        return f"signal {number}"
