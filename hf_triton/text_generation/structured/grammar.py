"""The grammar of one output, as the engine's thread follows it: its state is in another process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from . import frames


class FollowingProcess(Protocol):
    """What follows outputs by one constraint."""

    first_mask: bytes
    first_state: int

    def follow(self, number: int, token_id: int) -> None:
        """Orders a token to be taken; does not wait."""

    def state(self, number: int) -> int:
        """Waits for what the last token has led to: one of frames.py's states. Raises RequestError
        where it does not fit.
        """

    def mask(self, number: int) -> bytes | None:
        """Waits for what may come next; None where the process has ended."""

    def has_mask(self, number: int) -> bool:
        """Whether ``mask`` would not wait."""

    def drop(self, number: int) -> None:
        """The output goes on no longer; may be called from any thread."""

    def fileno(self) -> int:
        """That of the connection with it."""


class Grammar:
    """Follows one output token by token; used by the engine's thread alone.

    With n above 1 each choice has a grammar of its own. ``number`` is its own in the process. What
    was written may end where it ``may_end``, and has to where it ``is_complete``.
    """

    def __init__(self, process: FollowingProcess, number: int) -> None:
        self._process, self._number = process, number
        self._told: int | None = None
        self._began = False
        self.is_complete = False
        self.may_end = process.first_state != frames.GOES_ON

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
        self.is_complete, self.may_end = state == frames.IS_COMPLETE, state != frames.GOES_ON


def special_token_reason(token_id: int, special_tokens: Mapping[int, str]) -> str:
    """Why a token that is allowed is then refused; empty where its text is no special token's.

    llguidance allows such a token where the constraint has its text, then refuses it.
    """
    if token_id not in special_tokens:
        return ""
    return (
        f"has {special_tokens[token_id]!r}, a special token of this model, which can't be written "
        "as a text, allowed: other texts"
    )


def tell_all(tokens: Iterable[tuple[Grammar | None, int]]) -> None:
    """Begins with the next token of each, in all their processes at once."""
    for grammar, token_id in tokens:
        if grammar is not None:
            grammar.tell(token_id)
