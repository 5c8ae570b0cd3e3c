"""The grammar state of one output. Only this module and llguidance_grammars.py call llguidance."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from hf_runtime.errors import RequestError


class Grammar:
    """Follows one output token by token; used by the engine's thread alone.

    ``option`` is the request's option, which errors name; ``special_tokens`` are those whose text
    stands in the constraint. With n above 1 each choice has a grammar of its own.
    """

    def __init__(
        self,
        matcher: Any,
        option: str,
        num_words: int,
        special_tokens: Mapping[int, str] = MappingProxyType({}),
    ) -> None:
        self._matcher, self._option = matcher, option
        self._special_tokens = special_tokens
        self.num_words = num_words

    @property
    def is_complete(self) -> bool:
        """Whether nothing can follow but the end."""
        return bool(self._matcher.is_stopped())

    def fill(self, address: int) -> None:
        """Writes a bit for each token, 1 where it may come next, into ``num_words`` 32-bit words at
        ``address``, the lowest bit first. An end-of-text token may come where the text may end.
        """
        self._matcher.unsafe_compute_mask_ptr(address, 4 * self.num_words)

    def follow(self, token_id: int) -> None:
        """Takes the next token.

        Raises:
            RequestError: the grammar does not allow the token, because it allows none or because
                other options forbid those that it allows; or the grammar is too complex.
        """
        if not self._matcher.consume_token(token_id):
            why = _refusal_reason(self._matcher.stop_reason(), self._matcher.get_error())
            if token_id in self._special_tokens:
                # llguidance allows the token where the constraint has its text, then refuses it.
                why = (
                    f"has {self._special_tokens[token_id]!r}, a special token of this model, which "
                    "can't be written as a text, allowed: other texts"
                )
            raise RequestError(f"{self._option}: {why}")


def _refusal_reason(stop_reason: str, error: str) -> str:
    """llguidance says InternalError for a token that does not fit and for a limit alike."""
    fits_nothing = "satisfy the grammar" in error or stop_reason.startswith(("NoExt", "NotStop"))
    if not fits_nothing:
        return "too complex to follow any further, allowed: a simpler one"
    return (
        "no token of this model can go on; allowed: what its tokens can write, without bad_words "
        "or other options that forbid them"
    )
