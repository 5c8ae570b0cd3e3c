"""Starts the program that forks, and gives it orders."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hf_triton.python_env.find_environment import LIBRARY_PATH

from ..python_program import python_program
from . import worker

_START_S = 60.0
_REAPED_S = 0.1  # after a fork's socket has closed
_MOST_ENDED = 1024
_PROGRAM = (
    "import sys; sys.path[:0] = sys.argv[3:]; "
    "from hf_triton.runtime.sandbox.worker import main; main()"
)


class ForkServerError(Exception):
    """The program does not start, or can't prepare what its forks share."""


class ForkServer:
    """One program and its forks, without torch, secrets, or descriptors of this process."""

    def __init__(self, ready: Callable[..., object] | None) -> None:
        """``ready`` is called in the program, before it forks."""
        self._ready = "" if ready is None else name_of(ready)
        self._program: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._ended: dict[int, bool] = {}  # by number: whether somebody else has killed it
        self._lock = threading.Lock()

    @property
    def pid(self) -> int | None:
        return None if self._program is None else self._program.pid

    @property
    def runs(self) -> bool:
        return self._program is not None and self._program.poll() is None

    def start(self, content: bytes) -> None:
        """Starts the program, in the place of one that ended; ``ready`` is called with ``content``,
        if there is any.

        Raises:
            ForkServerError: why it can't be prepared; no text where the program does not start.
        """
        self.close()
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with there, os.fdopen(os.memfd_create("prepared"), "w+b") as file:
            file.write(content)
            file.seek(0)
            arguments = [str(there.fileno()), self._ready, str(LIBRARY_PATH), *_import_folders()]
            try:
                self._program = subprocess.Popen(
                    [python_program(), "-IS", "-c", _PROGRAM, *arguments],
                    pass_fds=[there.fileno()],
                    env=_environment(),
                    stdin=file,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,  # a panic would print the caller's text there
                )
            except OSError as error:
                here.close()
                raise ForkServerError from error
        self._control = here
        here.settimeout(_START_S)
        try:
            answer = here.recv(4096)
        except OSError:
            answer = b""
        here.settimeout(None)
        if answer != b"\n":
            self.close()
            raise ForkServerError(answer.decode())

    def fork(self, number: int) -> socket.socket:
        """This end of the connection with another fork. Raises OSError where the program ended."""
        self._note_ended(0.0)
        here, there = socket.socketpair()
        with there:
            try:
                if self._control is None:
                    raise BrokenPipeError
                order = worker.CONTROL.pack(worker.FORK, number)
                socket.send_fds(self._control, [order], [there.fileno()], socket.MSG_NOSIGNAL)
            except OSError:
                here.close()
                raise
        return here

    def was_killed(self, number: int) -> bool:
        """Whether a fork, whose socket has closed, was killed by somebody else: neither by ``kill``
        nor by its limits.
        """
        until_s = time.monotonic() + _REAPED_S
        while number not in self._ended and (left_s := until_s - time.monotonic()) > 0:
            if not (self.runs and self._note_ended(left_s)):
                return not self.runs
        return self._ended.get(number, False)

    def _note_ended(self, timeout_s: float) -> bool:
        """Reads which forks have ended; False where none is told of in that time."""
        with self._lock:
            control = self._control
            if control is None or not select.select([control], [], [], timeout_s)[0]:
                return False
            if len(self._ended) > _MOST_ENDED:
                self._ended.clear()
            with contextlib.suppress(OSError):
                while told := control.recv(worker.CONTROL.size, socket.MSG_DONTWAIT):
                    kind, number = worker.CONTROL.unpack(told)
                    self._ended[number] = kind == worker.KILL
            return True

    def order(self, kind: int, number: int) -> None:
        """KILL ends a fork, YIELD gives it a low priority, for good. Takes no lock: it may be
        called by a collection, within anything.
        """
        control = self._control
        if control is not None:
            with contextlib.suppress(OSError):
                order = worker.CONTROL.pack(kind, number)
                control.send(order, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)

    def close(self) -> None:
        """Ends the program, and with it all forks."""
        if self._control is not None:
            self._control.close()
        if self._program is not None:
            self._program.kill()
            self._program.wait()
        self._control = self._program = None


def name_of(function: Callable[..., Any]) -> str:
    """``module:function`` as the program imports it."""
    return f"{function.__module__}:{function.__qualname__}"


def _environment() -> dict[str, str]:
    """No secret, and no threads: their stacks and allocators would count as memory."""
    kept = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
    single = ("MALLOC_ARENA_MAX", "RAYON_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    return {**kept, **dict.fromkeys(single, "1"), "PYTHONUTF8": "1"}


def _import_folders() -> list[str]:
    """Where this process finds its packages; never the working directory."""
    folders = [folder for folder in sys.path if Path(folder).is_absolute()]
    return [folder for folder in dict.fromkeys(folders) if Path(folder) != Path.cwd()]
