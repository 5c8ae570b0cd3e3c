"""Decodes token ids to text as they come, without splitting a character.

Some tokenizers decode a token differently by what precedes it, so new tokens are decoded behind a
few of those before, whose text is cut off. Text that ends in U+FFFD may be half a character and
waits for the next token, as does text that may become a stop word: none is taken back.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence as Tokens
from typing import Any

_CONTEXT_TOKENS = 6  # at least; twice as many are cut to these, which then are decoded once
_LONGEST_CHARACTER = 4  # bytes, which may be a token each
_MOST_PENDING_TOKENS = 16  # longer than any character's bytes: these will never become one
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class Detokenizer:
    """Decodes the output of one sequence and finds its stop words; used by one thread at a time."""

    def __init__(
        self,
        tokenizer: Any,
        prompt_token_ids: Tokens[int],
        stop_words: Tokens[str] = (),
        *,
        include_stop_word: bool = False,
        kept_token_ids: frozenset[int] = frozenset(),
        shows_special_tokens: bool = False,
    ) -> None:
        """The text has the special tokens of ``kept_token_ids``, or all where it shows them."""
        self._tokenizer = tokenizer
        self._prompt_token_ids = prompt_token_ids
        self._context: list[list[int]] = []  # pieces of whole characters
        self._num_known = 0  # characters that the context decodes to, where that is known
        self._stop_words = sorted(stop_words)
        self._include_stop_word = include_stop_word
        self.kept = kept_token_ids
        self.shows_special_tokens = shows_special_tokens
        self._skipped: frozenset[int] | None = None
        if kept_token_ids and not shows_special_tokens:
            added = tokenizer.added_tokens_decoder.items()
            special = {token_id for token_id, token in added if token.special}
            self._skipped = frozenset(special) - kept_token_ids
        self._pending: list[int] = []  # tokens whose text is not complete yet
        self._text = ""
        self._num_released = 0
        self._stopped = False

    def add(self, token_ids: Tokens[int]) -> None:
        """Takes the next tokens; those that may end within a character wait."""
        self._pending += token_ids
        new = self._decode_after_context(self._pending)
        if new and not new.endswith(_REPLACEMENT):
            self._accept(self._pending, new)
        elif len(self._pending) > _MOST_PENDING_TOKENS:
            self._accept_what_no_token_changes()

    def stops_after(self, token_id: int, *, armed: bool) -> bool:
        """Takes the next token; whether the text now has a stop word, where it is cut. While not
        ``armed`` (fewer than min_tokens so far) stop words are let through.
        """
        num_searched = len(self._text)
        self.add([token_id])
        if not armed or len(self._text) <= num_searched:
            return False
        # A word has to end in text that is new: what was let through before stays.
        found = [
            (start, len(word))
            for word in self._stop_words
            if (start := self._text.find(word, max(0, num_searched - len(word) + 1))) >= 0
        ]
        if found:
            start, length = min(found)
            self._text = self._text[: start + (length if self._include_stop_word else 0)]
            self._pending = []
            self._stopped = True
        return self._stopped

    def release(self, *, final: bool) -> str:
        """The text since the last call; with ``final`` also what might still change."""
        if final and self._pending and not self._stopped:
            self._accept(self._pending, self._decode_after_context(self._pending))
        end = len(self._text) if final or self._stopped else self._num_safe()
        released = self._text[self._num_released : end]
        self._num_released = max(self._num_released, end)
        return released

    def _num_safe(self) -> int:
        """The number of characters before the first that may begin a stop word."""
        longest = max(map(len, self._stop_words), default=1) - 1
        for start in range(max(0, len(self._text) - longest), len(self._text)):
            end = self._text[start:]
            first = bisect.bisect_left(self._stop_words, end)  # words that begin so come from here
            if first < len(self._stop_words) and self._stop_words[first].startswith(end):
                return start
        return len(self._text)

    def _decode_after_context(self, token_ids: list[int]) -> str:
        if not self._context:
            self._context.append(self._end_of_prompt())
        context = [token_id for piece in self._context for token_id in piece]
        self._num_known = self._num_known or len(self._decode(context))
        return self._decode(context + token_ids)[self._num_known :]

    def _accept(self, token_ids: list[int], new: str) -> None:
        """Drops whole pieces from the context: cut within a character, it would make the next one
        U+FFFD with a byte-fallback tokenizer.
        """
        self._text += new
        self._context.append(token_ids)
        self._pending = self._pending[len(token_ids) :]
        self._num_known = self._num_known + len(new) if new else 0
        if sum(map(len, self._context)) < 2 * _CONTEXT_TOKENS:
            return
        self._num_known = 0
        while sum(map(len, self._context[1:])) >= _CONTEXT_TOKENS:
            del self._context[0]

    def _accept_what_no_token_changes(self) -> None:
        """Accepts bytes that will never become a character, all but the last few, up to a token
        where their text alone is the beginning of the text of all.
        """
        whole = self._decode_after_context(self._pending)
        newest = len(self._pending) - _LONGEST_CHARACTER
        for end in range(newest, newest - _LONGEST_CHARACTER, -1):
            begin = self._decode_after_context(self._pending[:end])
            if whole.startswith(begin):
                self._accept(self._pending[:end], begin)
                return

    def _end_of_prompt(self) -> list[int]:
        """The prompt's last tokens, a few more where the first would be half a character."""
        for num_tokens in range(_CONTEXT_TOKENS, _CONTEXT_TOKENS + _LONGEST_CHARACTER):
            end = list(self._prompt_token_ids[-num_tokens:])
            if not self._decode(end).startswith(_REPLACEMENT):
                return end
        return list(self._prompt_token_ids[-_CONTEXT_TOKENS:])

    def _decode(self, token_ids: Tokens[int]) -> str:
        skips = self._skipped is None and not self.shows_special_tokens
        if self._skipped is not None:
            token_ids = [token_id for token_id in token_ids if token_id not in self._skipped]
        text: str = self._tokenizer.decode(
            token_ids, skip_special_tokens=skips, clean_up_tokenization_spaces=False
        )
        return text
