"""A program that forks processes, which call the functions that they are asked to and can each be
killed without harm to others. No thread runs where it forks.

A question is ``QUESTION`` (seconds, bytes of memory or 0 for no other limit than before, number of
parts), the length of each part as ``LENGTH``, then the parts: the function's name, and what it is
given. An answer is ``ANSWER`` (kind, bytes of memory that this process has taken, length) and its
bytes.
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
from pathlib import Path
from types import FrameType
from typing import Any

from hf_triton.runtime.errors import RequestError, reason

FORK, KILL, YIELD = 1, 2, 3
# FORK, with a socket; KILL; YIELD the processor to who has more to do. And the number of a process.
# Back come those that have ended: KILL where somebody else has killed one.
CONTROL = struct.Struct("<BI")
QUESTION = struct.Struct("<dQI")
LENGTH = struct.Struct("<Q")
ANSWER = struct.Struct("<BQQ")
DONE, REFUSED, FAILED = 1, 2, 3
_SMALL = 2**16  # bytes of an answer that is sent with its head
_SLACK_BYTES = 64 * 2**20  # for the modules that a function imports at its first call
_NICENESS = 10
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_PAGE = resource.getpagesize()


def main() -> None:
    """Prepares what the forks share, answers on the socket of the first argument's descriptor, then
    forks. The second argument names the function that is called with what comes in, if any.
    """
    control, ready = socket.socket(fileno=int(sys.argv[1])), sys.argv[2]
    with sys.stdin.buffer as file:
        content = file.read()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    problem = ""
    try:
        if ready:
            _find_function(ready)(*([content] if content else []))
    except BaseException as error:  # PyO3's PanicException is not an Exception
        problem = reason(Exception(str(error) or type(error).__name__), 120)
    control.send(problem.encode() or b"\n")
    del content
    gc.freeze()  # a collection in a fork would write to the memory that all share
    _Forks(control).run()


def _find_function(name: str) -> Callable[..., Any]:
    module, _, function = name.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return found


class _Forks:
    def __init__(self, control: socket.socket) -> None:
        self._control = control
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
                pid, parent = 0, os.getpid()
                # Where there is no room for another, its socket closes.
                with (
                    socket.socket(fileno=descriptors[0]) as connection,
                    contextlib.suppress(OSError),
                ):
                    pid = os.fork()
                    if not pid:
                        self._run_fork(connection, parent)
                if pid:
                    self._numbers[pid] = number
            for pid in [pid for pid, known in self._numbers.items() if known == number]:
                if kind == KILL:
                    self._killed.add(number)
                    os.kill(pid, signal.SIGKILL)
                elif kind == YIELD:
                    with contextlib.suppress(OSError):
                        os.setpriority(os.PRIO_PROCESS, pid, _NICENESS)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})

    def _run_fork(self, connection: socket.socket, parent: int) -> None:
        """All that a fork does; never returns."""
        status = 1
        try:
            self._libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
            self._control.close()
            if os.getppid() == parent:  # else it ended before the kernel was told to tell of it
                _answer_questions(connection)
                status = 0
        finally:
            os._exit(status)

    def _reap(self, signum: int, frame: FrameType | None) -> None:
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                number = self._numbers.pop(found[0], 0)
                by_somebody = found[1] == signal.SIGKILL and number not in self._killed
                self._killed.discard(number)
                with contextlib.suppress(OSError):  # nobody has asked for long
                    answer = CONTROL.pack(KILL if by_somebody else FORK, number)
                    self._control.send(answer, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)


def _answer_questions(connection: socket.socket) -> None:
    """Calls one function after another until the other end is closed."""
    questions, had = connection.makefile("rb"), _num_own_bytes()
    while head := questions.read(QUESTION.size):
        seconds, max_bytes, num_parts = QUESTION.unpack(head)
        lengths = struct.unpack(f"<{num_parts}Q", questions.read(num_parts * LENGTH.size))
        name, *given = [questions.read(length) for length in lengths]
        if max_bytes:
            _limit_memory(max_bytes + _SLACK_BYTES)
        signal.setitimer(signal.ITIMER_REAL, seconds)  # the kernel ends this process then
        kind, answer = _answer(name.decode(), given)
        signal.setitimer(signal.ITIMER_REAL, 0)
        head = ANSWER.pack(kind, max(0, _num_own_bytes() - had), len(answer))
        connection.sendall(head + answer if len(answer) <= _SMALL else head)
        if len(answer) > _SMALL:
            connection.sendall(answer)


def _answer(name: str, given: list[bytes]) -> tuple[int, bytes]:
    """An error's own text may quote a caller's: only a RequestError's is told."""
    try:
        return DONE, _find_function(name)(*given)
    except RequestError as error:
        return REFUSED, str(error).encode()
    except BaseException as error:  # PyO3's PanicException is not an Exception
        return FAILED, type(error).__name__.encode()


def _limit_memory(max_bytes: int) -> None:
    """To so many bytes of address space beyond what the process has now."""
    with contextlib.suppress(OSError, ValueError):
        # Where the machine has no memory left, this process goes first.
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    with contextlib.suppress(OSError, ValueError):
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (_statm()[0] + max_bytes, hard))


def _num_own_bytes() -> int:
    """The memory of this process that is no file's; 0 where the kernel does not tell."""
    try:
        _, resident, shared, *_ = _statm()
    except OSError:
        return 0
    return resident - shared


def _statm() -> list[int]:
    """The sizes of /proc/pid/statm (proc(5)), in bytes."""
    return [int(pages) * _PAGE for pages in Path("/proc/self/statm").read_bytes().split()]
