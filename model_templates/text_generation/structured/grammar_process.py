"""The processes in which grammars are made and followed; each can be killed without harm to others.

Run as a program: it makes llguidance's form of the tokenizer once, then forks a process for each
constraint, which shares that form's memory. Such a process has a limit on its memory, and one on
the time of each thing that it does: then the kernel ends it, whatever code runs. No thread runs
where it forks. Imports neither torch nor transformers.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import resource
import signal
import socket
import struct
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

from hf_runtime.errors import RequestError, reason

from . import frames
from .constraint import Constraint, Reasoning
from .llguidance_grammars import make_matcher, refusal_reason

FORK, KILL = 1, 2
CONTROL = struct.Struct("<BI")  # FORK, with a socket, or KILL; and the number of a process
_STACK_BYTES = 64 * 2**20
_TURN_S = 0.1  # of CPU time; most grammars take a few milliseconds
_NICENESS = 10
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_PAGE = resource.getpagesize()


def main() -> None:
    """Reads the tokenizer from one descriptor, answers on the socket at the other, then forks."""
    control = socket.socket(fileno=int(sys.argv[1]))
    with open(int(sys.argv[2]), encoding="utf-8") as file:  # noqa: PTH123, a descriptor
        file.seek(0)
        given = json.load(file)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    tokenizer: Any = None
    problem = ""
    try:
        tokenizer = _tokenizer(given)
    except BaseException as error:  # PyO3's PanicException is not an Exception
        problem = reason(Exception(str(error) or type(error).__name__), 120)
    control.send(problem.encode() or b"\n")
    del given
    gc.freeze()  # a collection in a fork would write to the memory that all share
    _Forks(control, tokenizer).run()


class _Forks:
    """Forks, reaps and kills the processes of constraints, by the numbers that they are given."""

    def __init__(self, control: socket.socket, tokenizer: Any) -> None:
        self._control, self._tokenizer = control, tokenizer
        self._numbers: dict[int, int] = {}  # by process id
        self._libc = ctypes.CDLL(None)

    def run(self) -> None:
        """Until the engine's process closes its end, however that ends; then all forks die."""
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
            else:
                for pid in [pid for pid, known in self._numbers.items() if known == number]:
                    os.kill(pid, signal.SIGKILL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})

    def _fork(self, number: int, connection: socket.socket) -> None:
        pid, parent = 0, os.getpid()
        with connection, contextlib.suppress(OSError):  # no room for another: its socket closes
            pid = os.fork()
            if not pid:
                self._work(connection, parent)
        if pid:
            self._numbers[pid] = number

    def _work(self, connection: socket.socket, parent: int) -> None:
        """All that a fork does; never returns."""
        status = 1
        try:
            self._libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
            self._control.close()
            if os.getppid() == parent:  # else it ended before the kernel was told to tell of it
                Worker(connection, self._tokenizer).run()
                status = 0
        finally:
            os._exit(status)

    def _reap(self, signum: int, frame: FrameType | None) -> None:
        with contextlib.suppress(ChildProcessError):
            while pid := os.waitpid(-1, os.WNOHANG)[0]:
                self._numbers.pop(pid, None)


class Worker:
    """Makes the grammar of one constraint and follows outputs by it."""

    def __init__(self, connection: socket.socket, tokenizer: Any) -> None:
        self._connection, self._tokenizer = connection, tokenizer
        self._first: Any = None
        self._matchers: dict[int, Any] = {}
        self._base = _num_bytes()

    def run(self) -> None:
        """Until the other end is closed."""
        asked = json.loads(self._receive_text())
        self._step_s: float = asked["step_s"]
        self._masks: bool = asked["masks"]
        _limit_memory(asked["max_bytes"])
        _end_after(asked["time_limit_s"])
        problem = self._make(_constraint(asked))
        _end_after(0)
        state = frames.IS_REFUSED if problem else frames.GOES_ON
        self._send(frames.STATE, 0, bytes([state]) + problem.encode())
        if not problem:
            self._send(frames.MASK, 0, self._first_mask)
            self._follow_orders()

    def _make(self, constraint: Constraint) -> str:
        """In a thread of its own, which gets a low priority once it has taken long, so that the
        engine's thread runs first: on Linux each thread has a niceness of its own.
        """
        problem = ""

        def make() -> None:
            nonlocal problem
            try:
                self._first, self._first_mask = make_matcher(self._tokenizer, constraint)
            except RequestError as error:
                problem = str(error)
            except BaseException:  # PyO3's PanicException is not an Exception
                problem = f"{constraint.kind}: can't be prepared, allowed: another one"

        threading.stack_size(_STACK_BYTES)
        thread = threading.Thread(target=make)
        thread.start()
        thread.join(_TURN_S)
        while thread.is_alive() and time.process_time() < _TURN_S:
            thread.join(_TURN_S)  # the machine is busy
        if thread.is_alive():
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, thread.native_id or 0, _NICENESS)
            self._connection.sendall(frames.answer(frames.TAKES_LONG, 0, 0, b""))
        thread.join()
        return problem

    def _follow_orders(self) -> None:
        """First all tokens that have come, for whose states the engine waits; then the masks, which
        it needs after its next step's computation.
        """
        buffer = bytearray()
        while received := self._connection.recv(2**16):
            buffer += received
            followed: list[int] = []
            for kind, number, token_id in frames.take_orders(buffer):
                if kind == frames.DROP:
                    self._matchers.pop(number, None)
                elif self._follow(number, token_id) and self._masks:
                    followed.append(number)
            for number in followed:
                self._send_mask(number)

    def _follow(self, number: int, token_id: int) -> bool:
        """Takes a token; whether another may follow."""
        _end_after(self._step_s)
        matcher = self._matchers.get(number)
        if matcher is None:
            matcher = self._matchers[number] = self._first.deep_copy()
        why = b""
        if not matcher.consume_token(token_id):
            why = refusal_reason(matcher.stop_reason(), matcher.get_error()).encode()
        complete = frames.IS_COMPLETE if matcher.is_stopped() else frames.GOES_ON
        state = frames.IS_REFUSED if why else complete
        self._send(frames.STATE, number, bytes([state]) + why)
        return state == frames.GOES_ON

    def _send_mask(self, number: int) -> None:
        matcher = self._matchers.get(number)
        if matcher is not None:
            _end_after(self._step_s)
            mask = matcher.compute_bitmask()
            self._send(frames.MASK, number, mask)

    def _send(self, kind: int, number: int, payload: bytes) -> None:
        _end_after(0)
        num_bytes = max(0, _num_bytes() - self._base)
        self._connection.sendall(frames.answer(kind, number, num_bytes, payload))

    def _receive_text(self) -> bytes:
        """The first message: its length, then that many bytes."""
        (length,) = struct.unpack("<I", self._receive(4))
        return self._receive(length)

    def _receive(self, length: int) -> bytes:
        received = b""
        while len(received) < length:
            more = self._connection.recv(length - len(received))
            if not more:
                os._exit(0)
            received += more
        return received


def _constraint(asked: dict[str, Any]) -> Constraint:
    given = asked["reasoning"]
    tokens = tuple((text, token_id) for text, token_id in given["tokens"]) if given else ()
    reasoning = Reasoning(**{**given, "tokens": tokens}) if given else None
    return Constraint(asked["kind"], tuple(asked["texts"]), reasoning)


def _tokenizer(given: dict[str, Any]) -> Any:
    from llguidance import LLTokenizer

    return LLTokenizer(
        given["tokenizer"], n_vocab=given["num_tokens"], eos_token=given["eos_token_ids"] or None
    )


def _end_after(seconds: float) -> None:
    """The kernel ends this process then; 0 is never."""
    signal.setitimer(signal.ITIMER_REAL, seconds)


def _limit_memory(max_bytes: int) -> None:
    """To so many bytes beyond what is shared."""
    with contextlib.suppress(OSError, ValueError):
        # Where the machine has no memory left, this process goes first.
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    with contextlib.suppress(OSError, ValueError):
        most = _statm()[0] + max_bytes + _STACK_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _num_bytes() -> int:
    """The memory of this process that is no file's; 0 where the kernel does not tell."""
    try:
        _, resident, shared, *_ = _statm()
    except OSError:
        return 0
    return resident - shared


def _statm() -> list[int]:
    """In bytes: proc(5), /proc/pid/statm."""
    return [int(pages) * _PAGE for pages in Path("/proc/self/statm").read_bytes().split()]
