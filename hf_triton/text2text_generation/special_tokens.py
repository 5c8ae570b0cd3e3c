"""The special tokens that a tokenizer puts around a text.

They are read once, so that a text can be tokenised without them, cut, and given them afterwards. A
fast tokenizer keeps its language and truncation as state: setting them for one request would change
them for requests that other threads tokenise at the same time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hf_triton.runtime.errors import LoadError

_PROBE = "a b"


@dataclass(frozen=True)
class SpecialTokens:
    """Token ids before and after a text's own."""

    before: tuple[int, ...]
    after: tuple[int, ...]

    @property
    def size(self) -> int:
        """The number of special tokens."""
        return len(self.before) + len(self.after)

    def around(self, token_ids: list[int]) -> list[int]:
        """The text's tokens with the special ones around them."""
        return [*self.before, *token_ids, *self.after]


def special_tokens_of(tokenizer: Any) -> SpecialTokens:
    """What the tokenizer, with its present source language, puts around a text.

    Raises:
        LoadError: special tokens change the text's own tokens.
    """
    plain = tokenizer(_PROBE, add_special_tokens=False).input_ids
    whole = tokenizer(_PROBE).input_ids
    for start in range(len(whole) - len(plain) + 1):
        end = start + len(plain)
        if whole[start:end] == plain:
            return SpecialTokens(tuple(whole[:start]), tuple(whole[end:]))
    raise LoadError("the tokenizer's special tokens can't be told from those of a text")
