"""How the engine's thread follows outputs by grammars: their states are in other processes."""

from __future__ import annotations

import json
import select
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass

from hf_triton.runtime.errors import OverloadedError, RequestError
from hf_triton.runtime.sandbox import worker
from hf_triton.runtime.sandbox.pool import Process, SandboxEndedError

from . import grammar_process
from .constraint import Constraint

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
    """Follows outputs by one constraint; without ``masks`` nobody asks what may come next. Made
    and waited for by one thread, then used by the engine's alone; when nothing refers to it any
    more, the process ends.

    ``num_bytes`` is the memory that the process had when it answered last.
    """

    def __init__(
        self,
        process: Process,
        constraint: Constraint,
        special_tokens: Mapping[int, str],
        limits: Limits,
        grew: Callable[[], None],
        *,
        masks: bool = True,
    ) -> None:
        """``grew`` is called when the process has taken another megabyte or more."""
        self._process, self._constraint, self._masks_wanted = process, constraint, masks
        self._special_tokens, self._limits, self._grew = special_tokens, limits, grew
        # What is asked and not answered, in order: what takes the answer, and of which output.
        self._asked: deque[tuple[_Take, int]] = deque()
        self._states: dict[int, tuple[int, bytes]] = {}  # a kind of the worker's answers, and one
        self._masks: dict[int, bytes] = {}
        self._last_tokens: dict[int, int] = {}  # of outputs that go on
        self._followed: set[int] = set()  # outputs whose last token is not answered yet
        self._dropped: deque[int] = deque()
        self._num_started = 0
        self._takes_long = False
        self.first_mask, self.first_state = b"", grammar_process.GOES_ON
        self.num_bytes = 0

    def __call__(self) -> Grammar:
        """The grammar of one more output."""
        self._num_started += 1
        return Grammar(self, self._num_started)

    @property
    def has_ended(self) -> bool:
        """Whether the process has."""
        return self._process.has_ended

    @property
    def is_usable(self) -> bool:
        """Whether the process is still there; may be asked from any thread."""
        return self._process.is_there

    def fileno(self) -> int:
        """That of the connection."""
        return self._process.fileno()

    def begin(self, time_limit_s: float) -> None:
        """Has the grammar made; the process ends if that takes longer than the limit."""
        reasoning, limits = self._constraint.reasoning, self._limits
        asked = self._constraint.kind, self._constraint.texts, reasoning and asdict(reasoning)
        self._asked += (Following._take_begun, 0), (Following._take_state, 0)
        self._process.ask(
            grammar_process.begin,
            json.dumps(asked).encode(),
            time_limit_s=time_limit_s,
            max_bytes=limits.max_bytes,
        )
        self._process.ask(grammar_process.made, time_limit_s=time_limit_s)

    def wait(self, timeout_s: float, *, for_all: bool = True) -> bool:
        """Whether the grammar is made or the process has ended; waits for it that long, or without
        ``for_all`` until it is known to take long.

        Raises:
            RequestError: the grammar can't be made; names the option, and what is wrong.
        """
        until_s = time.monotonic() + timeout_s
        while 0 not in self._states and not self.has_ended:
            if (self._takes_long and not for_all) or not self._receive(until_s):
                return False
        if self.has_ended:
            return True
        kind, answer = self._states[0]
        if kind != worker.DONE:
            raise RequestError(answer.decode())
        self.first_state, self.first_mask = answer[:1], answer[1:]
        return True

    def follow(self, number: int, token_id: int) -> None:
        """Orders a token to be taken; does not wait."""
        while self._dropped:
            dropped = self._dropped.popleft()
            for known in (self._states, self._masks, self._last_tokens):
                known.pop(dropped, None)
            self._ask(grammar_process.drop, Following._take_nothing, dropped)
        self._last_tokens[number] = token_id
        self._followed.add(number)
        self._masks.pop(number, None)
        self._ask(grammar_process.follow, Following._take_state, number, token_id)

    def state(self, number: int) -> bytes:
        """Waits for what the last token has led to: one of grammar_process.py's states. Raises
        RequestError where it does not fit, OverloadedError where the process was killed.
        """
        self._wait_for(self._states, number)
        kind, answer = self._states.pop(number, (worker.FAILED, b""))
        option = self._constraint.kind
        if self.has_ended and kind == worker.FAILED and self._process.was_killed():
            raise OverloadedError(_KILLED)
        if kind == worker.FAILED:
            self.end()
            raise RequestError(f"{option}: {_TOO_COMPLEX}")
        if kind == worker.REFUSED:
            special = _special_token_reason(self._last_tokens[number], self._special_tokens)
            raise RequestError(f"{option}: {special or answer.decode()}")
        if self._masks_wanted and answer != grammar_process.IS_COMPLETE:
            self._ask(grammar_process.mask, Following._take_mask, number)
        return answer

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

    def end(self) -> None:
        """Ends the process: its outputs fail. May be called from any thread."""
        self.num_bytes = 0
        self._process.end()

    def close(self) -> None:
        """Ends the process and the connection; by the thread that uses it."""
        self.end()
        self._process.close()

    def _ask(
        self,
        function: Callable[[bytes], bytes],
        take: _Take,
        number: int,
        token_id: int = 0,
    ) -> None:
        self._asked.append((take, number))
        order = grammar_process.OUTPUT.pack(number, token_id)
        self._process.ask(function, order, time_limit_s=self._limits.step_s)

    def _wait_for(self, answers: Mapping[int, object], number: int) -> None:
        until_s = time.monotonic() + self._limits.step_s + _SLACK_S
        while number not in answers and not self.has_ended:
            if not self._receive(until_s):
                self.end()  # stopped from outside

    def _receive(self, until_s: float) -> bool:
        """Takes the next answer, after waiting for it until then; False where none came."""
        try:
            found = self._process.next_answer(until_s - time.monotonic())
        except SandboxEndedError:
            self.num_bytes = 0
            return True
        if found is None:
            return False
        take, number = self._asked.popleft()
        take(self, number, found[0], bytes(found[1]))
        if not self.has_ended and abs(self._process.num_bytes - self.num_bytes) >= _NOTED_BYTES:
            self.num_bytes = self._process.num_bytes
            self._grew()
        return True

    def _take_begun(self, number: int, kind: int, answer: bytes) -> None:
        self._takes_long = answer == grammar_process.TAKES_LONG

    def _take_state(self, number: int, kind: int, answer: bytes) -> None:
        self._followed.discard(number)
        if number in self._last_tokens or not number:
            self._states[number] = kind, answer

    def _take_mask(self, number: int, kind: int, answer: bytes) -> None:
        if kind != worker.DONE:
            self.end()
        elif number in self._last_tokens and number not in self._followed:
            self._masks[number] = answer

    def _take_nothing(self, number: int, kind: int, answer: bytes) -> None:
        pass


# Takes an answer: the number of its output, its kind, its bytes. A function of the class: a method
# of the object would refer to it, and only a rare collection would end its process.
_Take = Callable[[Following, int, int, bytes], None]


class Grammar:
    """Follows one output token by token; used by the engine's thread alone.

    With n above 1 each choice has a grammar of its own. ``number`` is its own in the process. What
    was written may end where it ``may_end``, and has to where it ``is_complete``.
    """

    def __init__(self, process: Following, number: int) -> None:
        self._process, self._number = process, number
        self._told: int | None = None
        self._began = False
        self.is_complete = False
        self.may_end = process.first_state != grammar_process.GOES_ON

    def __del__(self) -> None:
        if self._began:
            self._process.drop(self._number)

    @property
    def is_ready(self) -> bool:
        """Whether ``mask`` would not wait."""
        return not self._began or self._process.has_mask(self._number)

    def fileno(self) -> int:
        """The descriptor that has something to read when the mask comes."""
        return self._process.fileno()

    def mask(self) -> bytes:
        """A bit for each token, 1 where it may come next, the lowest bit first, in whole 32-bit
        words. An end-of-text token may come where the text may end. Where the grammar has become
        too complex it allows what came first: ``follow`` then says it.
        """
        found = self._process.mask(self._number) if self._began else None
        return self._process.first_mask if found is None else found

    def tell(self, token_id: int) -> None:
        """Begins with ``follow`` of the same token, so that others may begin before it ends."""
        self._process.follow(self._number, token_id)
        self._told, self._began = token_id, True

    def follow(self, token_id: int) -> None:
        """Takes the next token.

        Raises:
            RequestError: the grammar does not allow the token, because it allows none or because
                other options forbid those that it allows; or the grammar is too complex.
        """
        if self._told is None:
            self.tell(token_id)
        assert self._told == token_id
        self._told = None
        state = self._process.state(self._number)
        self.is_complete = state == grammar_process.IS_COMPLETE
        self.may_end = state != grammar_process.GOES_ON


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


def tell_all(tokens: Iterable[tuple[Grammar | None, int]]) -> None:
    """Begins with the next token of each, in all their processes at once."""
    for grammar, token_id in tokens:
        if grammar is not None:
            grammar.tell(token_id)


def _special_token_reason(token_id: int, special_tokens: Mapping[int, str]) -> str:
    """Why a token that is allowed is then refused; empty where its text is no special token's.

    llguidance allows such a token where the constraint has its text, then refuses it.
    """
    if token_id not in special_tokens:
        return ""
    return (
        f"has {special_tokens[token_id]!r}, a special token of this model, which can't be written "
        "as a text, allowed: other texts"
    )
