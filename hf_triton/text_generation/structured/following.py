"""The engine's end of the connection with the process of one constraint."""

from __future__ import annotations

import json
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass

from hf_triton.runtime.errors import OverloadedError, RequestError

from . import frames
from .constraint import Constraint
from .grammar import Grammar, special_token_reason

_NO_SIGNAL = socket.MSG_NOSIGNAL  # Triton's stub does not ignore SIGPIPE
_NOTED_BYTES = 2**20
_SLACK_S = 1.0  # beyond the time in which the kernel ends a process
_KILLED = "the process of this grammar went away before it answered: try again"
_TOO_COMPLEX = "too complex to follow any further, allowed: a simpler one"


@dataclass(frozen=True)
class Limits:
    """What ends a process: a token of an output mostly takes less than a millisecond of
    ``step_s``; ``max_bytes`` are those of its own memory.
    """

    step_s: float = 2.0
    max_bytes: int = 512 * 2**20


class Following:
    """Follows outputs by one constraint. Made and waited for by one thread, then used by the
    engine's alone; when nothing refers to it any more, the process ends.

    ``num_bytes`` is the memory that the process had when it answered last.
    """

    def __init__(
        self,
        connection: socket.socket,
        constraint: Constraint,
        special_tokens: Mapping[int, str],
        limits: Limits,
        grew: Callable[[], None],
        kill: Callable[[], None],
        was_killed: Callable[[], bool],
    ) -> None:
        """``grew`` is called when the process has taken another megabyte or more; ``kill`` ends
        it, ``was_killed`` says whether somebody else has.
        """
        self._connection, self._constraint = _Connection(connection), constraint
        self._special_tokens, self._limits, self._grew = special_tokens, limits, grew
        self._kill, self._was_killed = kill, was_killed
        self._received, self._unsent = bytearray(), bytearray()
        self._states: dict[int, bytes] = {}
        self._masks: dict[int, bytes] = {}
        self._last_tokens: dict[int, int] = {}
        self._dropped: deque[int] = deque()
        self._num_started = 0
        self._takes_long = False
        self.first_mask, self.first_state = b"", frames.GOES_ON
        self.num_bytes = 0
        self.has_ended = False

    def __del__(self) -> None:
        self.close()

    def __call__(self) -> Grammar:
        """The grammar of one more output."""
        self._num_started += 1
        return Grammar(self, self._num_started)

    def fileno(self) -> int:
        """That of the connection."""
        return self._connection.fileno()

    def ask(self, time_limit_s: float, *, masks: bool) -> None:
        """Sends the constraint; the process ends if the grammar is not made within the limit."""
        reasoning = self._constraint.reasoning
        asked = {
            "kind": self._constraint.kind,
            "texts": self._constraint.texts,
            "reasoning": reasoning and asdict(reasoning),
            "time_limit_s": time_limit_s,
            "step_s": self._limits.step_s,
            "max_bytes": self._limits.max_bytes,
            "masks": masks,
        }
        text = json.dumps(asked).encode()
        self._send(struct.pack("<I", len(text)) + text)

    def wait(self, timeout_s: float, *, for_all: bool = True) -> bool:
        """Whether the grammar is made or the process has ended; waits for it that long, or without
        ``for_all`` until it is known to take long.

        Raises:
            RequestError: the grammar can't be made; names the option, and what is wrong.
        """
        until_s = time.monotonic() + timeout_s
        while not self.first_mask and not self.has_ended:
            if self._takes_long and not for_all:
                return False
            if problem := self._states.get(0, b"")[1:]:
                raise RequestError(problem.decode())
            if not self._receive(until_s):
                return False
        return True

    def follow(self, number: int, token_id: int) -> None:
        """Orders a token to be taken; does not wait."""
        while self._dropped:
            dropped = self._dropped.popleft()
            for known in (self._states, self._masks, self._last_tokens):
                known.pop(dropped, None)
            self._unsent += frames.order(frames.DROP, dropped)
        self._last_tokens[number] = token_id
        self._masks.pop(number, None)
        self._send(frames.order(frames.FOLLOW, number, token_id))

    def state(self, number: int) -> int:
        """Waits for what the last token has led to: one of frames.py's states. Raises RequestError
        where it does not fit, OverloadedError where the process was killed.
        """
        self._wait_for(self._states, number)
        state = self._states.pop(number, None)
        option = self._constraint.kind
        if state is None and self._was_killed():
            raise OverloadedError(_KILLED)
        if state is None:
            raise RequestError(f"{option}: {_TOO_COMPLEX}")
        if state[0] == frames.IS_REFUSED:
            token_id = self._last_tokens[number]
            special = special_token_reason(token_id, self._special_tokens)
            raise RequestError(f"{option}: {special or state[1:].decode()}")
        return state[0]

    def mask(self, number: int) -> bytes | None:
        """Waits for what may come next; None where the process has ended."""
        self._wait_for(self._masks, number)
        return self._masks.get(number)

    def has_mask(self, number: int) -> bool:
        """Whether ``mask`` would not wait."""
        while number not in self._masks and not self.has_ended:
            if not self._receive(0.0):
                return False
        return True

    def drop(self, number: int) -> None:
        """The output goes on no longer; may be called from any thread."""
        self._dropped.append(number)

    @property
    def is_usable(self) -> bool:
        """Whether the process is still there; may be asked from any thread."""
        poll = select.poll()
        poll.register(self._connection, select.POLLRDHUP)
        return not self.has_ended and not poll.poll(0)

    def end(self) -> None:
        """Ends the process: its outputs fail. May be called from any thread."""
        self.has_ended, self.num_bytes = True, 0
        self._kill()

    def close(self) -> None:
        """Ends the process and the connection; by the thread that uses it."""
        self.end()
        self._connection.close()

    def _wait_for(self, answers: Mapping[int, bytes], number: int) -> None:
        until_s = time.monotonic() + self._limits.step_s + _SLACK_S
        while number not in answers and not self.has_ended:
            if not self._receive(until_s):
                self.has_ended = True  # stopped from outside

    def _send(self, content: bytes) -> None:
        self._unsent += content
        self._flush()

    def _flush(self) -> None:
        try:
            while self._unsent:
                del self._unsent[: self._connection.send(self._unsent, _NO_SIGNAL)]
        except BlockingIOError:
            pass  # the rest goes when the process reads on
        except OSError:
            self.has_ended = True

    def _receive(self, until_s: float) -> bool:
        """Takes what came, after waiting for it until then; False where nothing did."""
        poll = select.poll()
        poll.register(self._connection, select.POLLIN | (select.POLLOUT if self._unsent else 0))
        while True:
            found = poll.poll(1000 * max(0.0, until_s - time.monotonic()))
            if not found:
                return False
            if found[0][1] & select.POLLOUT:
                self._flush()
                poll.modify(
                    self._connection, select.POLLIN | (select.POLLOUT if self._unsent else 0)
                )
            if found[0][1] & ~select.POLLOUT:
                break
        try:
            received = self._connection.recv(2**20)
        except BlockingIOError:
            return True
        except OSError:
            received = b""
        if not received:
            self.has_ended = True
        self._received += received
        for kind, number, num_bytes, payload in frames.take_answers(self._received):
            self._note(num_bytes)
            if kind == frames.STATE:
                self._states[number] = payload
            elif kind == frames.TAKES_LONG:
                self._takes_long = True
            elif number:
                self._masks[number] = payload
            else:
                self.first_mask, self.first_state = payload, self._states[0][0]
        return True

    def _note(self, num_bytes: int) -> None:
        if not self.has_ended and abs(num_bytes - self.num_bytes) >= _NOTED_BYTES:
            self.num_bytes = num_bytes
            self._grew()


class _Connection(socket.socket):
    """Closes itself, in a cycle that is collected too."""

    def __init__(self, connection: socket.socket) -> None:
        super().__init__(fileno=connection.detach())
        self.setblocking(False)

    def __del__(self) -> None:
        self.close()


def wait_for_masks(grammars: Iterable[Grammar], timeout_s: float) -> bool:
    """Waits until all of them are ready, or the time is over; whether they are."""
    until_s = time.monotonic() + timeout_s
    late = [grammar for grammar in grammars if not grammar.is_ready]
    while late and (left_s := until_s - time.monotonic()) > 0:
        poll = select.poll()
        for descriptor in {grammar.fileno() for grammar in late}:
            poll.register(descriptor, select.POLLIN)
        poll.poll(1000 * left_s)
        late = [grammar for grammar in late if not grammar.is_ready]
    return not late
