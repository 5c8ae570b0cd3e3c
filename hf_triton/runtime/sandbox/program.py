"""A program that forks processes, each of which can be killed without harm to others.

It prepares what its forks share once, then forks one whenever it is told to. No thread runs where
it forks. Does not know what its forks do.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import resource
import signal
import socket
import struct
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from hf_triton.runtime.errors import reason

FORK, KILL, YIELD = 1, 2, 3
# FORK, with a socket; KILL; YIELD the processor to who has more to do. And the number of a process.
# Back come those that have ended: KILL where somebody else has killed one.
CONTROL = struct.Struct("<BI")
_NICENESS = 10
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main() -> None:
    """Reads what is shared from one descriptor, answers on the socket at the other, then forks.

    The third argument names the function that prepares it, ``module:function``: from bytes to what
    a fork does with its socket.
    """
    control = socket.socket(fileno=int(sys.argv[1]))
    with open(int(sys.argv[2]), "rb") as file:  # noqa: PTH123, a descriptor
        file.seek(0)
        content = file.read()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    work: Any = None
    problem = ""
    try:
        work = find_function(sys.argv[3])(content)
    except BaseException as error:  # PyO3's PanicException is not an Exception
        problem = reason(Exception(str(error) or type(error).__name__), 120)
    control.send(problem.encode() or b"\n")
    del content
    gc.freeze()  # a collection in a fork would write to the memory that all share
    _Forks(control, work).run()


def find_function(name: str) -> Callable[..., Any]:
    """Imports the function named ``module:function``."""
    module, _, function = name.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return found


class _Forks:
    """Forks, reaps and kills processes by the numbers that they are given."""

    def __init__(self, control: socket.socket, work: Callable[[socket.socket], object]) -> None:
        self._control, self._work = control, work
        self._numbers: dict[int, int] = {}  # by process id
        self._killed: set[int] = set()  # numbers of those that were to be
        self._libc = ctypes.CDLL(None)

    def run(self) -> None:
        """Until the other end is closed, however that comes; then all forks die."""
        signal.signal(signal.SIGCHLD, self._reap)
        while True:
            order, descriptors, _, _ = socket.recv_fds(self._control, CONTROL.size, 1)
            if not order:
                return
            kind, number = CONTROL.unpack(order)
            # Nothing is reaped meanwhile: a number of a process that is known is still its own.
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
            if kind == FORK:
                self._fork(number, socket.socket(fileno=descriptors[0]))
            for pid in [pid for pid, known in self._numbers.items() if known == number]:
                if kind == KILL:
                    self._killed.add(number)
                    os.kill(pid, signal.SIGKILL)
                elif kind == YIELD:
                    with contextlib.suppress(OSError):
                        os.setpriority(os.PRIO_PROCESS, pid, _NICENESS)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})

    def _fork(self, number: int, connection: socket.socket) -> None:
        pid, parent = 0, os.getpid()
        with connection, contextlib.suppress(OSError):  # no room for another: its socket closes
            pid = os.fork()
            if not pid:
                self._run_fork(connection, parent)
        if pid:
            self._numbers[pid] = number

    def _run_fork(self, connection: socket.socket, parent: int) -> None:
        """All that a fork does; never returns."""
        status = 1
        try:
            self._libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
            self._control.close()
            if os.getppid() == parent:  # else it ended before the kernel was told to tell of it
                self._work(connection)
                status = 0
        finally:
            os._exit(status)

    def _reap(self, signum: int, frame: FrameType | None) -> None:
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                self._tell(self._numbers.pop(found[0], 0), found[1])

    def _tell(self, number: int, status: int) -> None:
        by_somebody = status == signal.SIGKILL and number not in self._killed
        self._killed.discard(number)
        with contextlib.suppress(OSError):  # nobody has asked for long
            answer = CONTROL.pack(KILL if by_somebody else FORK, number)
            self._control.send(answer, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
