"""Texts to the tokens that the encoder reads, within its longest input."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hf_runtime.errors import LoadError, RequestError
from text_generation.loading import check_tokens

from .special_tokens import SpecialTokens

# A text of this many times the characters that could fit is refused before it is tokenised. White
# space and runs of unknown characters may become one token, so the vocabulary's longest token is no
# strict bound.
_SLACK = 64


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
        """``max_length`` counts special tokens; ``count_unknown`` is told of each text how many of
        its tokens are unknown.
        """
        self._tokenizer = tokenizer
        self._max_length = max_length
        self._vocab_size = vocab_size
        self._count_unknown = count_unknown
        longest_token = max((len(token) for token in tokenizer.get_vocab()), default=1)
        self._most_characters = _SLACK * max_length * longest_token
        self._cuts_left = getattr(tokenizer, "truncation_side", "right") == "left"

    def require_room_for(self, special_tokens: SpecialTokens) -> None:
        """Raises LoadError where the longest input has no room for a text."""
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
        if len(text) > self._most_characters:
            if not truncate:
                raise self._too_long(f"{len(text)} characters, far more")
            text = self._cut(text, self._most_characters)
        token_ids: list[int] = self._tokenizer(text, add_special_tokens=False).input_ids
        check_tokens("text_input", token_ids, self._vocab_size)
        room = self._max_length - special_tokens.size
        if len(token_ids) > room and not truncate:
            raise self._too_long(str(len(token_ids) + special_tokens.size))
        token_ids = self._cut(token_ids, room)
        unknown_id = self._tokenizer.unk_token_id
        self._count_unknown(token_ids.count(unknown_id))
        return special_tokens.around(token_ids)

    def _cut(self, items: Any, length: int) -> Any:
        return items[-length:] if self._cuts_left else items[:length]

    def _too_long(self, got: str) -> RequestError:
        return RequestError(
            f"text_input: got {got} tokens, this model takes at most {self._max_length}; send "
            "truncate: true to cut it"
        )
