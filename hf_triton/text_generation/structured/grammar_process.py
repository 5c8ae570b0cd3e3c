"""The processes in which grammars are made and followed; each can be killed without harm to others.

They are forked by a program that makes llguidance's form of the tokenizer once, whose memory they
share. Such a process has a limit on its memory, and one on the time of each thing that it does:
then the kernel ends it, whatever code runs. Imports neither torch nor transformers.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Any

from hf_triton.runtime.errors import RequestError
from hf_triton.runtime.sandbox.limits import end_after, limit_memory, num_own_bytes

from . import frames
from .constraint import Constraint, Reasoning
from .llguidance_grammars import make_matcher, refusal_reason

_STACK_BYTES = 64 * 2**20
_TURN_S = 0.1  # of CPU time; most grammars take a few milliseconds
_NICENESS = 10


def prepare(content: bytes) -> Callable[[socket.socket], None]:
    """llguidance's form of a tokenizer, and what a fork does with its connection."""
    given = json.loads(content)
    tokenizer, plain_tokens = _tokenizer(given), given["plain_tokens"]
    return lambda connection: Worker(connection, tokenizer, plain_tokens).run()


class Worker:
    """Makes the grammar of one constraint and follows outputs by it."""

    def __init__(
        self, connection: socket.socket, tokenizer: Any, plain_tokens: dict[str, int]
    ) -> None:
        self._connection, self._tokenizer = connection, tokenizer
        self._plain_tokens = plain_tokens
        self._first: Any = None
        self._matchers: dict[int, Any] = {}
        self._base = num_own_bytes()

    def run(self) -> None:
        """Until the other end is closed."""
        asked = json.loads(self._receive_text())
        self._step_s: float = asked["step_s"]
        self._masks: bool = asked["masks"]
        limit_memory(asked["max_bytes"] + _STACK_BYTES)
        end_after(asked["time_limit_s"])
        problem = self._make(_constraint(asked))
        end_after(0)
        state = frames.IS_REFUSED if problem else _state(self._first)
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
                own, plain = self._tokenizer, self._plain_tokens
                self._first, self._first_mask = make_matcher(own, constraint, plain)
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
        end_after(self._step_s)
        matcher = self._matchers.get(number)
        if matcher is None:
            matcher = self._matchers[number] = self._first.deep_copy()
        why = b""
        # Where nothing can follow, llguidance takes an end of the text though none may come.
        if not matcher.consume_token(token_id) or matcher.is_error():
            why = refusal_reason(matcher.stop_reason(), matcher.get_error()).encode()
        state = frames.IS_REFUSED if why else _state(matcher)
        self._send(frames.STATE, number, bytes([state]) + why)
        return state in (frames.GOES_ON, frames.MAY_END)

    def _send_mask(self, number: int) -> None:
        matcher = self._matchers.get(number)
        if matcher is not None:
            end_after(self._step_s)
            mask = matcher.compute_bitmask()
            self._send(frames.MASK, number, mask)

    def _send(self, kind: int, number: int, payload: bytes) -> None:
        end_after(0)
        num_bytes = max(0, num_own_bytes() - self._base)
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


def _state(matcher: Any) -> int:
    if matcher.is_stopped():
        return frames.IS_COMPLETE
    return frames.MAY_END if matcher.is_accepting() else frames.GOES_ON


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
