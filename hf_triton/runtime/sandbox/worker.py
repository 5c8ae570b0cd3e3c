"""A program that forks processes, which call the functions that they are asked to and can each be
killed without harm to others. No thread runs where it forks.

A process has one connection, of whole messages. A question is ``QUESTION`` (seconds, bytes of
memory or 0 for no other limit than before) and parts: the function's name, and what it is given. An
answer is ``ANSWER`` (kind, bytes of memory that this process has taken) and one part.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import io
import os
import pkgutil
import resource
import signal
import socket
import struct
import sys
from pathlib import Path
from typing import Any

from hf_triton.runtime.errors import RequestError, reason

FORK, KILL, YIELD = 1, 2, 3
# FORK, with a socket; KILL, with one for whether somebody else had killed it before, or without;
# YIELD the processor to who has more to do. And the number of a process.
CONTROL = struct.Struct("<BI")
QUESTION = struct.Struct("<dQ")
ANSWER = struct.Struct("<BQ")
DONE, REFUSED, FAILED = range(1, 4)
_MOST_SENT = 2**16  # bytes; parts of more lie in memory that both ends see
_MOST_RECEIVED = _MOST_SENT + 2**12
_SLACK_BYTES = 64 * 2**20  # for the modules that a function imports at its first call
_NICENESS = 10
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_PAGE = resource.getpagesize()


def packed(head: bytes, *parts: bytes) -> tuple[bytes, list[int]]:
    """A message: what is sent, and a descriptor of its parts where they are large."""
    lengths = struct.pack(f"<I{len(parts)}Q", len(parts), *map(len, parts))
    if sum(map(len, parts)) <= _MOST_SENT:
        return b"".join((head, lengths, *parts)), []
    descriptor = os.memfd_create("parts")
    with os.fdopen(descriptor, "wb", closefd=False) as file:
        file.writelines(parts)
    return head + lengths, [descriptor]


def receive(connection: socket.socket, head: struct.Struct) -> tuple[Any, ...]:
    """The numbers of the next message's ``head``, and its parts. Raises EOFError."""
    sent, descriptors, flags, _ = socket.recv_fds(connection, _MOST_RECEIVED, 1)
    if not sent or flags & socket.MSG_CTRUNC:  # no descriptor is left for its parts
        raise EOFError
    (count,) = struct.unpack_from("<I", sent, head.size)
    lengths = struct.unpack_from(f"<{count}Q", sent, head.size + 4)
    with os.fdopen(descriptors[0], "rb") if descriptors else io.BytesIO(sent) as file:
        file.seek(0 if descriptors else head.size + 4 + 8 * count)
        return *head.unpack_from(sent), [file.read(length) for length in lengths]


def main() -> None:
    """Prepares what the forks share, answers on the socket of the first argument's descriptor, then
    forks. The second argument names a function, if any, whose module they share; it is called with
    what comes in, if anything does.
    """
    control, ready = socket.socket(fileno=int(sys.argv[1])), sys.argv[2]
    with sys.stdin.buffer as file:
        content = file.read()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    problem = ""
    try:
        prepare = pkgutil.resolve_name(ready) if ready else None
        if prepare and content:
            prepare(content)
    except BaseException as error:  # PyO3's PanicException is not an Exception
        problem = reason(Exception(str(error) or type(error).__name__), 120)
    control.send(problem.encode() or b"\n")
    del content
    gc.freeze()  # a collection in a fork would write to the memory that all share
    _Forks(control).run()


class _Forks:
    """The forks by their numbers. One that has ended stays a zombie, whose process id nobody else
    gets, until the other end orders its end.
    """

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._pids: dict[int, int] = {}
        self._libc = ctypes.CDLL(None)

    def run(self) -> None:
        """Obeys until the other end is closed, however that comes; then all forks die."""
        while True:
            order, descriptors, _, _ = socket.recv_fds(self._control, CONTROL.size, 1)
            if not order:
                return
            connection = socket.socket(fileno=descriptors[0]) if descriptors else None
            kind, number = CONTROL.unpack(order)
            with contextlib.suppress(OSError):
                self._obey(kind, number, connection)
            if connection is not None:
                connection.close()

    def _obey(self, kind: int, number: int, connection: socket.socket | None) -> None:
        """Raises OSError where a caller has gone, or there is no room for another fork."""
        if kind == KILL:
            was_killed = self._end(number)
            if connection is not None:
                connection.send(b"1" if was_killed else b"0")
        elif kind == YIELD:
            with contextlib.suppress(KeyError):
                os.setpriority(os.PRIO_PROCESS, self._pids[number], _NICENESS)
        elif connection is not None:
            self._pids[number] = self._fork(connection)

    def _fork(self, connection: socket.socket) -> int:
        """Returns the process id; the fork answers its questions, then ends."""
        parent, status = os.getpid(), 1
        if pid := os.fork():
            return pid
        try:
            self._libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            self._control.close()
            if os.getppid() == parent:  # else it ended before the kernel was told to tell of it
                _answer_questions(connection)
                status = 0
        finally:
            os._exit(status)

    def _end(self, number: int) -> bool:
        """Ends a fork; True if it was killed before, or never began."""
        pid = self._pids.pop(number, None)
        if pid is None:
            return True
        os.kill(pid, signal.SIGKILL)  # keeps the status of one that has ended
        _, status = os.waitpid(pid, 0)
        return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def _answer_questions(connection: socket.socket) -> None:
    """Calls one function after another until the other end is closed."""
    had = _num_own_bytes()
    with contextlib.suppress(EOFError):
        while True:
            seconds, max_bytes, (name, *given) = receive(connection, QUESTION)
            if max_bytes:
                _limit_memory(max_bytes + _SLACK_BYTES)
            signal.setitimer(signal.ITIMER_REAL, seconds)  # the kernel ends this process then
            kind, answer = _answer(name.decode(), given)
            signal.setitimer(signal.ITIMER_REAL, 0)
            head = ANSWER.pack(kind, max(0, _num_own_bytes() - had))
            sent, descriptors = packed(head, answer)
            del answer, given
            socket.send_fds(connection, [sent], descriptors)
            for descriptor in descriptors:
                os.close(descriptor)


def _answer(name: str, given: list[bytes]) -> tuple[int, bytes]:
    """Tells the text of a RequestError alone: any other may quote a caller's."""
    try:
        return DONE, pkgutil.resolve_name(name)(*given)
    except RequestError as error:
        return REFUSED, str(error).encode()
    except BaseException as error:  # PyO3's PanicException is not an Exception
        return FAILED, type(error).__name__.encode()


def _limit_memory(max_bytes: int) -> None:
    """Lets the address space of this process grow by at most ``max_bytes``."""
    with contextlib.suppress(OSError, ValueError):
        # The kernel ends this process first if the machine has no memory left.
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    with contextlib.suppress(OSError, ValueError):
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (_statm()[0] + max_bytes, hard))


def _num_own_bytes() -> int:
    """The memory of this process that is no file's; 0 where the kernel does not tell."""
    with contextlib.suppress(OSError):
        _, resident, shared, *_ = _statm()
        return resident - shared
    return 0


def _statm() -> list[int]:
    """The sizes of /proc/pid/statm (proc(5)), in bytes."""
    return [int(pages) * _PAGE for pages in Path("/proc/self/statm").read_bytes().split()]
