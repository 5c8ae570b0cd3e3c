"""Calls functions in processes of a pool, each of which has a limit on its time and memory: for
bytes whose cost nobody can tell beforehand. A call costs some 0.1 ms beyond the function.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hf_triton.python_env.find_environment import LIBRARY_PATH

from ..errors import CancelledError, OverloadedError, RequestError
from ..own_environment import python_program
from . import worker

_MAX_BYTES = 512 * 2**20
_MAX_KEPT_BYTES = 256 * 2**20  # of a process that waits for another call
_TURN_S = 0.1  # after which a call has a low priority, and its caller is asked whether it waits
_SLACK_S = 1.0  # beyond the time in which the kernel ends a process
_MAX_IDLE = 4
_KILLED = "the helper process went away before it answered: try again"
_START_S = 60.0
_PROGRAM = (
    "import sys; sys.path[:0] = sys.argv[3:]; "
    "from hf_triton.runtime.sandbox.worker import main; main()"
)


class ForkServerError(Exception):
    """The program does not start, or can't prepare what its forks share."""


class ForkServer:
    """One program and its forks, without torch, secrets, or descriptors of this process."""

    def __init__(self, ready: Callable[..., object] | None) -> None:
        """``ready`` is imported by the program before it forks, and called with what it gets."""
        self._ready = "" if ready is None else name_of(ready)
        self._program: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    @property
    def runs(self) -> bool:
        return self._program is not None and self._program.poll() is None

    def start(self, content: bytes) -> None:
        """Starts the program, in the place of one that ended; ``ready`` is called with ``content``,
        if there is any. Raises ForkServerError: why it can't be prepared; no text where the program
        does not start.
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
        connection = self._connected(worker.FORK, number)
        connection.setblocking(False)
        return connection

    def was_killed(self, number: int) -> bool:
        """True if somebody else has killed a fork that has ended, or the program."""
        try:
            with self._connected(worker.KILL, number) as connection:
                connection.settimeout(_START_S)
                return connection.recv(1) != b"0"
        except OSError:
            return True

    def _connected(self, kind: int, number: int) -> socket.socket:
        """This end of a connection whose other one goes with an order. Raises OSError."""
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with there:
            try:
                self._send(kind, number, [there.fileno()])
            except OSError:
                here.close()
                raise
        return here

    def order(self, kind: int, number: int) -> None:
        """KILL ends a fork, YIELD lowers its priority. Takes no lock: a collection may call it."""
        with contextlib.suppress(OSError):
            self._send(kind, number, [], socket.MSG_DONTWAIT)

    def _send(self, kind: int, number: int, descriptors: list[int], flags: int = 0) -> None:
        control, order = self._control, worker.CONTROL.pack(kind, number)
        if control is None:
            raise BrokenPipeError
        socket.send_fds(control, [order], descriptors, flags | socket.MSG_NOSIGNAL)

    def close(self) -> None:
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
    """Returns the folders of this process's packages; never the working directory."""
    folders = [folder for folder in sys.path if Path(folder).is_absolute()]
    return [folder for folder in dict.fromkeys(folders) if Path(folder) != Path.cwd()]


class SandboxError(Exception):
    """The function failed; the text is its error's type, for what it says may quote a caller."""


class SandboxEndedError(SandboxError):
    """The process ended: the function took more time or memory than it may."""


class Sandbox:
    """The processes of one model. Any thread may call; there are as many processes as calls at a
    time, which is the callers' to bound. They start with the first call, and end with this one.
    """

    def __init__(self, ready: Callable[..., object] | None = None) -> None:
        """``ready`` is imported before there is a process, and called with ``start``'s content."""
        self.server = ForkServer(ready)
        self._lock = threading.Lock()  # guards what follows
        self._idle: list[Process] = []
        self._numbers = itertools.count(1)
        self._closed = False
        weakref.finalize(self, _end, self.server, self._idle)

    def call(
        self,
        function: Callable[..., bytes],
        *given: bytes,
        time_limit_s: float,
        max_bytes: int = _MAX_BYTES,
        has_left: Callable[[], bool] = lambda: False,
    ) -> bytes:
        """Returns what a function of a module makes of ``given``, in a process that has imported
        the module without torch.

        ``max_bytes`` is what it may take; ``has_left`` is asked now and then: if it is true, nobody
        waits any more. Raises RequestError: as the function raised it; SandboxEndedError: it took
        longer than ``time_limit_s``, or more memory; SandboxError: it raised anything else;
        CancelledError: nobody waits for it; OverloadedError: no process can be had, or somebody
        else has killed it.
        """
        process = self._idle_one() or self.new_process()
        try:
            process.ask(function, *given, time_limit_s=time_limit_s, max_bytes=max_bytes)
            kind, answer = process.wait(time_limit_s + _SLACK_S, has_left)
        except BaseException as error:
            process.close()
            if process.was_killed or isinstance(error, OSError):  # no descriptor is left
                raise OverloadedError(_KILLED) from None
            raise
        self._give_back(process)
        if kind == worker.REFUSED:
            raise RequestError(answer.decode())
        if kind == worker.FAILED:
            raise SandboxError(answer.decode())
        return answer

    def start(self, content: bytes = b"") -> None:
        """Starts the program unless it runs. Raises ForkServerError: why ``ready`` failed."""
        with self._lock:
            if not self._closed and not self.server.runs:
                _end(self.server, self._idle)
                self.server.start(content)

    def new_process(self) -> Process:
        """A process for its caller alone. Raises OverloadedError where none can be had."""
        try:
            self.start()
            with self._lock:
                if self._closed:
                    raise OverloadedError("the model is being unloaded: try again later")
                number = next(self._numbers)
                return Process(self.server, number, self.server.fork(number))
        except (ForkServerError, OSError):
            text = "no helper process can be started: try again later"
            raise OverloadedError(text) from None

    def close(self) -> None:
        """Ends all processes; calls that wait fail."""
        with self._lock:
            self._closed = True
            _end(self.server, self._idle)

    def _idle_one(self) -> Process | None:
        with self._lock:
            while self._idle and self.server.runs:  # else it dies soon
                if (process := self._idle.pop()).is_there:
                    return process
                process.close()
            return None

    def _give_back(self, process: Process) -> None:
        with self._lock:
            is_large = process.num_bytes > _MAX_KEPT_BYTES
            if self._closed or process.is_slow or is_large or len(self._idle) >= _MAX_IDLE:
                process.close()
            else:
                self._idle.append(process)


def _end(server: ForkServer, idle: list[Process]) -> None:
    server.close()
    for process in idle:
        process.close()
    idle.clear()


class Process:
    """One process, which answers each question once, in their order; used by one thread at a time.
    When nothing refers to it any more it ends.

    ``num_bytes`` is the memory that it had taken when it answered last; ``was_killed``: by somebody
    else, neither by ``end`` nor by its limits.
    """

    def __init__(self, server: ForkServer, number: int, connection: socket.socket) -> None:
        self._server, self._number, self._connection = server, number, connection
        self._unsent: deque[tuple[bytes, list[int]]] = deque()
        # A __del__ might come after the connection's own, which warns that nobody closed it.
        ended = server, number, connection, self._unsent
        self._end = weakref.finalize(self, _end_process, *ended)
        self.num_bytes = 0
        self.has_ended = self.is_slow = self.was_killed = False

    def fileno(self) -> int:
        """The descriptor that has something to read when an answer comes."""
        return self._connection.fileno()

    @property
    def is_there(self) -> bool:
        """False once it has ended; may be asked from any thread."""
        poll = select.poll()
        poll.register(self._connection, select.POLLRDHUP)
        return not self.has_ended and not poll.poll(0)

    def ask(
        self, function: Callable[..., bytes], *given: bytes, time_limit_s: float, max_bytes: int = 0
    ) -> None:
        """Does not wait. Without ``max_bytes`` the limit of the question before holds."""
        head = worker.QUESTION.pack(time_limit_s, max_bytes)
        self._unsent.append(worker.packed(head, name_of(function).encode(), *given))
        self._send()

    def wait(self, timeout_s: float, has_left: Callable[[], bool]) -> tuple[int, bytes]:
        """Returns the answer's kind and bytes; a process that takes long gets a low priority."""
        until_s = time.monotonic() + timeout_s
        while (found := self.next_answer(_TURN_S)) is None:
            if not self.is_slow and not self._unsent:
                self.is_slow = True
                self._server.order(worker.YIELD, self._number)
            if has_left():
                raise CancelledError("the caller has disconnected")
            if time.monotonic() > until_s:
                raise SandboxEndedError
        return found

    def next_answer(self, timeout_s: float) -> tuple[int, bytes] | None:
        """The next answer, or None. Raises SandboxEndedError where there is no process."""
        until_s = time.monotonic() + timeout_s
        while True:
            # One that ends before it has read all questions resets the connection; what was told
            # before is read after that.
            with contextlib.suppress(BlockingIOError, ConnectionResetError):
                return self._received()
            poll = select.poll()
            poll.register(self._connection, select.POLLIN | (select.POLLOUT if self._unsent else 0))
            if not poll.poll(1000 * max(0.0, until_s - time.monotonic())):
                return None
            self._send()

    def end(self) -> None:
        """Ends it, whatever it does; may be called from any thread."""
        self.has_ended, self.num_bytes = True, 0
        self._server.order(worker.KILL, self._number)

    def close(self) -> None:
        """Ends it and the connection; by the thread that uses it."""
        self.has_ended, self.num_bytes = True, 0
        self._end()

    def _send(self) -> None:
        with contextlib.suppress(OSError):  # it reads later, or has ended, which receiving tells
            while self._unsent:
                message, descriptors = self._unsent[0]
                socket.send_fds(self._connection, [message], descriptors, socket.MSG_NOSIGNAL)
                _drop_first(self._unsent)

    def _received(self) -> tuple[int, bytes]:
        try:
            kind, self.num_bytes, (answer,) = worker.receive(self._connection, worker.ANSWER)
        except EOFError:
            self.was_killed = not self.has_ended and self._server.was_killed(self._number)
            self.has_ended = True
            raise SandboxEndedError from None
        return kind, answer


def _end_process(
    server: ForkServer,
    number: int,
    connection: socket.socket,
    unsent: deque[tuple[bytes, list[int]]],
) -> None:
    server.order(worker.KILL, number)
    connection.close()
    while unsent:
        _drop_first(unsent)


def _drop_first(unsent: deque[tuple[bytes, list[int]]]) -> None:
    for descriptor in unsent.popleft()[1]:
        os.close(descriptor)
