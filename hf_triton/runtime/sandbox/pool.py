"""Calls functions in processes of a pool, each of which has a limit on its time and memory.

For what works on bytes of a caller or of a model's files whose cost nobody can tell beforehand:
decoders of images, chat templates, tokenizers. A call costs some 0.1 ms beyond the function.
"""

from __future__ import annotations

import contextlib
import itertools
import select
import socket
import struct
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path

from ..errors import CancelledError, OverloadedError, RequestError
from . import worker
from .fork_server import ForkServer, ForkServerError, name_of

_MAX_BYTES = 512 * 2**20
_TURN_S = 0.1  # after which a call has a low priority, and its caller is asked whether it waits
_SLACK_S = 1.0  # beyond the time in which the kernel ends a process
_STOPPED_S = 10.0  # without a byte of a question or an answer: it was stopped from outside
_MAX_IDLE = 4
_KILLED = "the process for this went away before it answered: try again"


class SandboxError(Exception):
    """The function failed; the text is its error's type, for what it says may quote a caller."""


class SandboxEndedError(SandboxError):
    """The process ended: the function took more time or memory than it may."""


class Sandbox:
    """The processes of one model. Any thread may call; there are as many processes as calls at a
    time, which is the callers' to bound. They start with the first call, and end with this one.
    """

    def __init__(self, ready: Callable[[], object] | None = None) -> None:
        """``ready`` is called once, before there is a process: they share what it imports."""
        self._server = ForkServer(worker.prepare, _import_folders())
        self._ready = b"" if ready is None else name_of(ready).encode()
        self._lock = threading.Lock()  # guards what follows
        self._idle: list[_Process] = []
        self._numbers = itertools.count(1)
        self._closed = False
        weakref.finalize(self, _end, self._server, self._idle)

    def call(
        self,
        function: Callable[..., bytes],
        *given: bytes,
        time_limit_s: float,
        max_bytes: int = _MAX_BYTES,
        has_left: Callable[[], bool] = lambda: False,
    ) -> bytearray:
        """What a function of a module makes of ``given``, in a process where that module is
        imported without torch.

        ``max_bytes`` is what it may take; ``has_left`` is asked now and then: if it is true, nobody
        waits any more.

        Raises:
            RequestError: as the function raised it.
            SandboxEndedError: it took longer than ``time_limit_s``, or more memory.
            SandboxError: it raised anything else.
            CancelledError: nobody waits for it.
            OverloadedError: no process can be had, or somebody else has killed it.
        """
        process = self._take()
        try:
            process.ask(time_limit_s, max_bytes, [name_of(function).encode(), *given])
            kind, answer = process.wait(time_limit_s + _SLACK_S, has_left)
        except BaseException as error:
            has_ended = isinstance(error, SandboxEndedError)
            was_killed = has_ended and self._server.was_killed(process.number)
            process.end()
            if was_killed:
                raise OverloadedError(_KILLED) from None
            raise
        self._give_back(process)
        if kind == worker.REFUSED:
            raise RequestError(answer.decode())
        if kind == worker.FAILED:
            raise SandboxError(answer.decode())
        return answer

    def close(self) -> None:
        """Ends all processes; calls that wait fail."""
        with self._lock:
            self._closed = True
            _end(self._server, self._idle)

    def _take(self) -> _Process:
        with self._lock:
            if self._closed:
                raise OverloadedError("the model is being unloaded: try again later")
            while self._idle and self._server.runs:  # else it dies soon
                if (process := self._idle.pop()).is_usable:
                    return process
                process.end()
            try:
                if not self._server.runs:
                    _end(self._server, self._idle)
                    self._server.start(self._ready)
                return _Process(self._server, next(self._numbers))
            except (ForkServerError, OSError):
                text = "no process for this can be started: try again later"
                raise OverloadedError(text) from None

    def _give_back(self, process: _Process) -> None:
        with self._lock:
            if self._closed or process.is_slow or len(self._idle) >= _MAX_IDLE:
                process.end()
            else:
                self._idle.append(process)


def _end(server: ForkServer, idle: list[_Process]) -> None:
    server.close()
    for process in idle:
        process.end()
    idle.clear()


class _Process:
    """One process; used by one thread at a time."""

    def __init__(self, server: ForkServer, number: int) -> None:
        self._server, self.number = server, number
        self._connection = server.fork(number)
        self._connection.settimeout(_STOPPED_S)
        self._poll = select.poll()
        self._poll.register(self._connection, select.POLLIN)
        self.is_slow = False

    @property
    def is_usable(self) -> bool:
        """Whether it waits for a question."""
        return not self._poll.poll(0)

    def ask(self, seconds: float, max_bytes: int, parts: list[bytes]) -> None:
        head = worker.QUESTION.pack(seconds, max_bytes, len(parts))
        lengths = struct.pack(f"<{len(parts)}Q", *map(len, parts))
        with contextlib.suppress(OSError):  # it has ended, which `wait` sees
            for part in (head + lengths, *parts):
                self._connection.sendall(part, socket.MSG_NOSIGNAL)

    def wait(self, timeout_s: float, has_left: Callable[[], bool]) -> tuple[int, bytearray]:
        """The kind of the answer, and its bytes."""
        until_s = time.monotonic() + timeout_s
        while not self._poll.poll(1000 * _TURN_S):
            if not self.is_slow:
                self.is_slow = True
                self._server.slow_down(self.number)
            if has_left():
                raise CancelledError("the caller has left")
            if time.monotonic() > until_s:
                raise SandboxEndedError
        try:
            head = worker.receive(self._connection, worker.ANSWER.size)
            kind, length = worker.ANSWER.unpack(head)
            answer = worker.receive(self._connection, length)
        except (OSError, struct.error):
            raise SandboxEndedError from None
        if len(answer) != length:
            raise SandboxEndedError
        return kind, answer

    def end(self) -> None:
        """Ends it, whatever it does."""
        self._server.kill(self.number)
        self._connection.close()


def _import_folders() -> list[str]:
    """Where this process finds its packages; never the working directory."""
    folders = [folder for folder in sys.path if Path(folder).is_absolute()]
    return [folder for folder in dict.fromkeys(folders) if Path(folder) != Path.cwd()]
