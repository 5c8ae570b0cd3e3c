"""The special tokens that a tokenizer puts around a text.

They are taken apart once, so that a text can be tokenised without them and framed, or cut, by hand:
setting a fast tokenizer's language or truncation for one request would change it for those that
other threads tokenise just then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hf_runtime.errors import LoadError

_PROBE = "a b"


@dataclass(frozen=True)
class Frame:
    """Token ids before and after a text's own."""

    before: tuple[int, ...]
    after: tuple[int, ...]

    @property
    def size(self) -> int:
        """How many tokens the frame has."""
        return len(self.before) + len(self.after)

    def around(self, token_ids: list[int]) -> list[int]:
        """The text's tokens with the frame's."""
        return [*self.before, *token_ids, *self.after]


def frame_of(tokenizer: Any) -> Frame:
    """What the tokenizer, as it is now, puts around a text.

    Raises:
        LoadError: it changes the text's own tokens by it.
    """
    plain = tokenizer(_PROBE, add_special_tokens=False).input_ids
    whole = tokenizer(_PROBE).input_ids
    for start in range(len(whole) - len(plain) + 1):
        end = start + len(plain)
        if whole[start:end] == plain:
            return Frame(tuple(whole[:start]), tuple(whole[end:]))
    raise LoadError("the tokenizer's special tokens can't be told from those of a text")
