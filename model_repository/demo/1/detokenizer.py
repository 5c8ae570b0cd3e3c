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
_LONGEST_CHARACTER = 4  # bytes, which may be a token each
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class Detokenizer:
    """Decodes the output of one sequence and finds its stop words."""

    def __init__(
        self, tokenizer: Any, prompt_token_ids: Tokens[int], stop_words: Tokens[str]
    ) -> None:
        self._tokenizer = tokenizer
        self._prompt_token_ids = prompt_token_ids
        self._context: list[list[int]] = []  # pieces of whole characters
        self._stop_words = tuple(stop_words)
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
        num_searched = len(self._text)
        self._accept(new)
        return armed and self._cut_at_stop_word(num_searched)

    def text(self, token_ids: Tokens[int]) -> str:
        """The whole output's text, cut before a stop word where one was found."""
        if not self._stop_words:
            self._pending = list(token_ids)
        if not self._stopped and self._pending:
            self._accept(self._decode_pending())
        return self._text

    def _decode_pending(self) -> str:
        if not self._context:
            self._context.append(self._end_of_prompt())
        context = [token_id for piece in self._context for token_id in piece]
        known = self._decode(context)
        return self._decode(context + self._pending)[len(known) :]

    def _accept(self, new: str) -> None:
        """Whole pieces leave the context: cut within a character, it would spoil those after it."""
        self._text += new
        self._context.append(self._pending)
        self._pending = []
        while sum(map(len, self._context[1:])) >= _CONTEXT_TOKENS:
            del self._context[0]

    def _end_of_prompt(self) -> list[int]:
        """The prompt's last tokens, a few more where the first would be half a character."""
        for num_tokens in range(_CONTEXT_TOKENS, _CONTEXT_TOKENS + _LONGEST_CHARACTER):
            end = list(self._prompt_token_ids[-num_tokens:])
            if not self._decode(end).startswith(_REPLACEMENT):
                return end
        return list(self._prompt_token_ids[-_CONTEXT_TOKENS:])

    def _cut_at_stop_word(self, num_searched: int) -> bool:
        """Looks where a word ends in text that is new; what was let through before stays."""
        found = [
            self._text.find(word, max(0, num_searched - len(word) + 1)) for word in self._stop_words
        ]
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
