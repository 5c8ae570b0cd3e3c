"""Tokens of one window with their labels' scores, from which entities are made.

Source: transformers, pipelines/token_classification.py, ``gather_pre_entities``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hf_triton.encoder.answers.rows import softmax
from hf_triton.encoder.task import Array


@dataclass(frozen=True)
class Window:
    """A tokenised stretch of a text. ``positions``: its tokens that are not special ones, which
    are those computed. ``offsets``: of each token, in characters of the whole text; None where the
    tokenizer tells none.
    """

    token_ids: Sequence[int]
    positions: tuple[int, ...]
    offsets: Sequence[tuple[int, int]] | None


@dataclass(frozen=True)
class TaggedToken:
    """One token. ``scores`` (labels,) sum to 1; ``index`` is its place among the window's tokens;
    ``is_subword`` where it goes on with the word of the token before.
    """

    word: str
    scores: Array
    start: int | None
    end: int | None
    index: int
    is_subword: bool


class TokenReader:
    """Puts a model's outputs and its tokenizer's words together."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        backend = getattr(tokenizer, "backend_tokenizer", None)
        model = getattr(backend, "model", None)
        self._marks_subwords = bool(getattr(model, "continuing_subword_prefix", None))

    def read(self, text: str, window: Window, logits: Array) -> list[TaggedToken]:
        """Tokens with scores, from ``logits`` (positions, labels)."""
        ids = [window.token_ids[position] for position in window.positions]
        words = self._tokenizer.convert_ids_to_tokens(ids)
        rows = zip(window.positions, ids, words, softmax(logits), strict=True)
        if window.offsets is None:
            return [TaggedToken(word, row, None, None, i, False) for i, _, word, row in rows]
        return [self._placed(text, *row, window.offsets[row[0]]) for row in rows]

    def _placed(
        self,
        text: str,
        index: int,
        token_id: int,
        word: str,
        scores: Array,
        offsets: tuple[int, int],
    ) -> TaggedToken:
        start, end = offsets
        spelt = text[start:end]
        if token_id == self._tokenizer.unk_token_id:
            return TaggedToken(spelt, scores, start, end, index, False)
        if self._marks_subwords:
            is_subword = len(word) != len(spelt)
        else:
            # transformers' guess where a tokenizer knows no words: no space before it.
            is_subword = start > 0 and " " not in text[start - 1 : start + 1]
        return TaggedToken(word, scores, start, end, index, is_subword)
