"""Follows outputs by grammars, whose states are in other processes, on the engine's thread."""

from __future__ import annotations

import select
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping

from msgspec.json import encode

from hf_triton.runtime.errors import OverloadedError, RequestError, RuntimeModelError
from hf_triton.runtime.sandbox import worker
from hf_triton.runtime.sandbox.pool import Process, SandboxEndedError

from . import grammar_process
from .constraint import Constraint

WENT_AWAY = "the process of this grammar went away before it answered: try again"
# Limits of a process. A token of an output mostly takes less than a millisecond.
STEP_S = 2.0
MAX_PROCESS_BYTES = 512 * 2**20
_NOTED_BYTES = 2**20
_SLACK_S = 1.0  # beyond the time in which the kernel ends a process


def busy(constraint: Constraint) -> OverloadedError:
    return OverloadedError(f"too many of {constraint.kind} are being prepared: try again later")


class Following:
    """The process that follows outputs by one constraint; without ``masks`` nothing asks what may
    come next. Made and waited for by one thread, then used by the engine's alone; the process ends
    when nothing refers to it any more. ``num_bytes`` is its memory as it last said.
    """

    def __init__(
        self,
        process: Process,
        constraint: Constraint,
        special_tokens: Mapping[int, str],
        grew: Callable[[], None],
        *,
        masks: bool = True,
    ) -> None:
        """``grew`` is called when the process has taken another megabyte or more."""
        self.process, self._constraint, self.masks_wanted = process, constraint, masks
        self._special_tokens, self._grew = special_tokens, grew
        # Functions of grammar_process.py that are not answered, in order, and for which output each
        # is asked: weakly, or only a rare collection of garbage would end the process.
        self._unanswered: deque[tuple[Callable[..., bytes], weakref.ref[Grammar] | None]] = deque()
        self._outcome: tuple[int, bytes] | None = None  # a kind of the worker's answers, and one
        self._dropped: deque[int] = deque()
        self._num_started = 0
        self.first_mask, self.first_state = b"", grammar_process.GOES_ON
        self.num_bytes = 0

    def __call__(self) -> Grammar:
        self._num_started += 1
        return Grammar(self, self._num_started)

    def begin(self, time_limit_s: float) -> None:
        """Has the grammar made; the process ends at the time limit."""
        self._unanswered.append((grammar_process.make, None))
        self.process.ask(
            grammar_process.make,
            encode(self._constraint),
            time_limit_s=time_limit_s,
            max_bytes=MAX_PROCESS_BYTES,
        )

    def wait(self, timeout_s: float) -> bool:
        """Waits for the grammar; returns False while it is being made. Raises RequestError where it
        can't be made, OverloadedError where it takes long, as another one does.
        """
        until_s = time.monotonic() + timeout_s
        while self._outcome is None and not self.process.has_ended:
            if not self.receive(until_s):
                return False
        if self._outcome is None or self.process.has_ended:
            return True
        if self._outcome == (worker.FAILED, BlockingIOError.__name__.encode()):
            raise busy(self._constraint)
        kind, answer = self._outcome
        if kind != worker.DONE:
            raise RequestError(answer.decode())
        self.first_state, self.first_mask = answer[:1], answer[1:]
        return True

    def ask(self, function: Callable[[bytes], bytes], grammar: Grammar, token_id: int = 0) -> None:
        """Has a token of an output taken, or asks what may come next; does not wait."""
        while self._dropped:
            self._ask(grammar_process.drop, self._dropped.popleft(), 0, None)
        self._ask(function, grammar.number, token_id, weakref.ref(grammar))

    def wait_until(self, has_come: Callable[[], bool]) -> None:
        """Waits for answers; ends the process where none come in time."""
        until_s = time.monotonic() + STEP_S + _SLACK_S
        while not has_come() and not self.process.has_ended:
            if not self.receive(until_s):
                self.end()  # stopped from outside

    def refusal(self, kind: int, answer: bytes, token_id: int) -> RuntimeModelError:
        """Returns the error for a token that can't be followed; ends a process that failed."""
        option = self._constraint.kind
        if kind == worker.REFUSED and token_id in self._special_tokens:
            # llguidance allows it where the constraint has its text, then refuses it.
            return RequestError(
                f"{option}: has {self._special_tokens[token_id]!r}, a special token of this model, "
                "which can't be written as a text, allowed: other texts"
            )
        if kind == worker.REFUSED:
            return RequestError(f"{option}: {answer.decode()}")
        if self.process.was_killed:
            return OverloadedError(WENT_AWAY)
        self.end()
        text = "too complex to follow any further, allowed: a simpler one"
        return RequestError(f"{option}: {text}")

    def drop(self, number: int) -> None:
        """Forgets an output; may be called from any thread."""
        self._dropped.append(number)

    def end(self) -> None:
        """Ends the process: its outputs fail. May be called from any thread."""
        self.num_bytes = 0
        self.process.end()

    def close(self) -> None:
        """Ends the process and the connection; by the thread that uses it."""
        self.end()
        self.process.close()

    def receive(self, until_s: float) -> bool:
        """Takes the next answer, after waiting for it until then; False where none came."""
        try:
            found = self.process.next_answer(until_s - time.monotonic())
        except SandboxEndedError:
            self.num_bytes = 0
            return True
        if found is None:
            return False
        function, asking = self._unanswered.popleft()
        kind, answer = found
        grammar = None if asking is None else asking()
        if function is grammar_process.make:
            self._outcome = kind, answer
        elif function is grammar_process.mask and kind != worker.DONE:
            self.end()
        elif grammar is not None and function is grammar_process.mask:
            grammar.take_mask(answer)
        elif grammar is not None:
            grammar.state = kind, answer
        num_bytes = self.process.num_bytes
        if not self.process.has_ended and abs(num_bytes - self.num_bytes) >= _NOTED_BYTES:
            self.num_bytes = num_bytes
            self._grew()
        return True

    def _ask(
        self,
        function: Callable[[bytes], bytes],
        number: int,
        token_id: int,
        asking: weakref.ref[Grammar] | None,
    ) -> None:
        self._unanswered.append((function, asking))
        order = grammar_process.OUTPUT.pack(number, token_id)
        self.process.ask(function, order, time_limit_s=STEP_S)


class Grammar:
    """Follows one output; used by the engine's thread alone. ``number`` is its own in the process.
    The output may end where it ``may_end``, and has to where it ``is_complete``. ``state`` is the
    answer to the last token.
    """

    def __init__(self, following: Following, number: int) -> None:
        self.following, self.number = following, number
        self.state: tuple[int, bytes] | None = None
        self._mask: bytes | None = following.first_mask
        self._sent_token: int | None = None
        self._began = self.is_complete = False
        self.may_end = following.first_state != grammar_process.GOES_ON

    def __del__(self) -> None:
        if self._began:
            self.following.drop(self.number)

    @property
    def is_ready(self) -> bool:
        """``mask`` would return at once."""
        while self._mask is None and not self.following.process.has_ended:
            if not self.following.receive(0.0):
                return False
        return True

    def mask(self) -> bytes:
        """A bit for each token, 1 where it may come next, the lowest bit first, in whole 32-bit
        words. Of a grammar that has become too complex it is the first one: ``follow`` refuses.
        """
        self.following.wait_until(lambda: self._mask is not None)
        return self.following.first_mask if self._mask is None else self._mask

    def take_mask(self, mask: bytes) -> None:
        """Keeps an answer, unless another token has been told since it was asked for."""
        if self._sent_token is None:
            self._mask = mask

    def tell(self, token_id: int) -> None:
        """Begins with ``follow`` of the same token."""
        self.following.ask(grammar_process.follow, self, token_id)
        self._sent_token, self._began, self._mask = token_id, True, None

    def follow(self, token_id: int) -> None:
        """Takes the next token.

        Raises:
            RequestError: the grammar does not allow it, or is too complex.
            OverloadedError: somebody else has killed its process.
        """
        if self._sent_token is None:
            self.tell(token_id)
        assert self._sent_token == token_id
        self.following.wait_until(lambda: self.state is not None)
        kind, answer = self.state or (worker.FAILED, b"")
        self.state = self._sent_token = None
        if kind != worker.DONE:
            raise self.following.refusal(kind, answer, token_id)
        self.is_complete = answer == grammar_process.IS_COMPLETE
        self.may_end = answer != grammar_process.GOES_ON
        if self.following.masks_wanted and not self.is_complete:
            self.following.ask(grammar_process.mask, self)


def wait_for_masks(grammars: Iterable[Grammar], timeout_s: float) -> bool:
    """Waits until all of them are ready, or the time is over; whether they are."""
    until_s = time.monotonic() + timeout_s
    late = [grammar for grammar in grammars if not grammar.is_ready]
    while late and (left_s := until_s - time.monotonic()) > 0:
        poll = select.poll()
        for descriptor in {grammar.following.process.fileno() for grammar in late}:
            poll.register(descriptor, select.POLLIN)
        poll.poll(1000 * left_s)
        late = [grammar for grammar in late if not grammar.is_ready]
    return not late
