"""Token ids to text, token by token where stop words are looked for, without ever splitting a
character.

A token may hold part of a character, and some tokenizers decode a token differently by what
precedes it: so text is decoded together with a few tokens before it and the part that was known
already is cut off. Text that ends in U+FFFD may be half a character and waits for the next token.
"""

from __future__ import annotations

from collections.abc import Sequence as Tokens
from typing import Any

_CONTEXT_TOKENS = 6
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class Detokenizer:
    """Decodes the output of one sequence and finds its stop words."""

    def __init__(
        self, tokenizer: Any, prompt_token_ids: Tokens[int], stop_words: Tokens[str]
    ) -> None:
        self._tokenizer = tokenizer
        self._context = list(prompt_token_ids[-_CONTEXT_TOKENS:])
        self._stop_words = tuple(stop_words)
        self._longest_stop_word = max(map(len, self._stop_words), default=0)
        self._pending: list[int] = []  # tokens whose text is not complete yet
        self._text = ""
        self._stopped = False

    def stops_after(self, token_id: int, *, armed: bool) -> bool:
        """Takes the next token; True when the text now holds a stop word, which is cut off with all
        after it.

        While not ``armed`` (fewer than min_tokens so far) stop words are let through.
        """
        self._pending.append(token_id)
        new = self._decode_pending()
        if not new or new.endswith(_REPLACEMENT):
            return False
        searched_from = max(0, len(self._text) - self._longest_stop_word + 1)
        self._accept(new)
        return armed and self._cut_at_stop_word(searched_from)

    def text(self, token_ids: Tokens[int]) -> str:
        """The whole output's text, cut before a stop word where one was found."""
        if not self._stop_words:
            self._pending = list(token_ids)
        if not self._stopped and self._pending:
            self._accept(self._decode_pending())
        return self._text

    def _decode_pending(self) -> str:
        known = self._decode(self._context)
        return self._decode(self._context + self._pending)[len(known) :]

    def _accept(self, new: str) -> None:
        self._text += new
        self._context = (self._context + self._pending)[-_CONTEXT_TOKENS:]
        self._pending = []

    def _cut_at_stop_word(self, searched_from: int) -> bool:
        found = [self._text.find(word, searched_from) for word in self._stop_words]
        starts = [start for start in found if start >= 0]
        if starts:
            self._text = self._text[: min(starts)]
            self._stopped = True
        return self._stopped

    def _decode(self, token_ids: Tokens[int]) -> str:
        text: str = self._tokenizer.decode(
            token_ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text
