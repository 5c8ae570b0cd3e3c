"""Texts to the tokens that the encoder reads, within its longest input."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hf_triton.runtime.errors import LoadError, RequestError
from hf_triton.runtime.tokenizing.lengths import check_characters, tokens_of_part
from hf_triton.text_generation.loading import check_tokens

from .special_tokens import SpecialTokens

_CUT = "send truncate: true to cut it"


class SourceTokenizer:
    """Tokenises texts and adds special tokens. May be used by several threads at once."""

    def __init__(
        self,
        tokenizer: Any,
        *,
        max_length: int,
        vocab_size: int,
        count_unknown: Callable[[int], None],
    ) -> None:
        """``max_length`` counts special tokens; ``count_unknown`` gets each text's number of
        unknown tokens.
        """
        self._tokenizer = tokenizer
        self._max_length = max_length
        self._vocab_size = vocab_size
        self._count_unknown = count_unknown
        self._cuts_left = getattr(tokenizer, "truncation_side", "right") == "left"

    def require_room_for(self, special_tokens: SpecialTokens) -> None:
        """Raises LoadError where special tokens leave no room for a text."""
        if special_tokens.size >= self._max_length:
            raise LoadError(
                f"max_model_len: got {self._max_length}, but special tokens alone are "
                f"{special_tokens.size}"
            )

    def encode(self, text: str, special_tokens: SpecialTokens, *, truncate: bool) -> list[int]:
        """The text's tokens between their special tokens.

        Raises:
            RequestError: too long and not to be cut, or nothing to read.
        """
        room = self._max_length - special_tokens.size
        if truncate:
            token_ids = self._cut(text, room)
        else:
            check_characters("text_input", len(text), room, _CUT)
            token_ids = self._ids(text)
        check_tokens("text_input", token_ids, self._vocab_size)
        if len(token_ids) > room:
            raise RequestError(
                f"text_input: got {len(token_ids) + special_tokens.size} tokens, this model takes "
                f"at most {self._max_length}; {_CUT}"
            )
        unknown_id = self._tokenizer.unk_token_id
        self._count_unknown(token_ids.count(unknown_id))
        return special_tokens.around(token_ids)

    def _ids(self, text: str) -> list[int]:
        found: list[int] = self._tokenizer(text, add_special_tokens=False).input_ids
        return found

    def _cut(self, text: str, room: int) -> list[int]:
        found = tokens_of_part("text_input", text, room, self._ids, keeps_end=self._cuts_left)
        return found[-room:] if self._cuts_left else found[:room]
