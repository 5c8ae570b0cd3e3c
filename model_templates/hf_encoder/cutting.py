"""Cuts tokenised texts: to a length, or into overlapping windows.

A fast tokenizer keeps truncation as state of its own: of two threads that share it, one's setting
would cut the other's text, or leave it whole. So it is never asked to truncate. Texts are tokenised
whole, cut, and given their special tokens afterwards, which is what it would do itself
(https://github.com/huggingface/tokenizers, ``Tokenizer.post_process`` and ``truncate_encodings``).
"""

from __future__ import annotations

from typing import Any

import tokenizers
from hf_runtime.errors import RequestError

Pieces = tokenizers.Encoding


def stop_truncating(tokenizer: Any) -> None:
    """Takes away what tokenizer.json says of truncation and padding; once, at load."""
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.backend_tokenizer.no_padding()


def pieces_of(tokenizer: Any, text: str) -> Pieces:
    """A text's tokens without special ones."""
    found: Pieces = tokenizer.backend_tokenizer.encode(text, add_special_tokens=False)
    return found


def joined(tokenizer: Any, first: Pieces, second: Pieces | None = None) -> list[Pieces]:
    """One text or a pair with its special tokens: one for each window that a text was cut into."""
    whole: Pieces = tokenizer.backend_tokenizer.post_process(first, second)
    return [whole, *whole.overflowing]


def room(tokenizer: Any, max_length: int, *, pair: bool) -> int:
    """How many tokens of the texts fit beside the special ones."""
    return max(0, max_length - int(tokenizer.num_special_tokens_to_add(pair)))


def cut(
    tokenizer: Any, text: str, pair: str | None, max_length: int, strategy: str = "longest_first"
) -> Pieces:
    """One text or a pair of at most ``max_length`` tokens. ``strategy`` says what of a pair is cut:
    "longest_first" the longer text, then both; "only_first" or "only_second" that one alone.

    Raises:
        RequestError: the text of a pair that may not be cut leaves no room for the other.
    """
    space = room(tokenizer, max_length, pair=pair is not None)
    first = pieces_of(tokenizer, text)
    second = None if pair is None else pieces_of(tokenizer, pair)
    longest = _longest(strategy, len(first), 0 if second is None else len(second), space)
    for pieces, length in zip((first, second), longest, strict=True):
        if pieces is not None and len(pieces) > length:
            pieces.truncate(length, direction=tokenizer.truncation_side)
    return joined(tokenizer, first, second)[0]


def _longest(strategy: str, first: int, second: int, space: int) -> tuple[int, int]:
    """How many tokens each of two texts keeps, together at most ``space``."""
    if first + second <= space:
        return first, second
    if not second or strategy == "only_first":
        return _left(space, second), second
    if strategy == "only_second":
        return first, _left(space, first)
    short, long = sorted((first, second))
    if 2 * short <= space:
        long = space - short
    else:
        short, long = space // 2, space - space // 2
    return (short, long) if first <= second else (long, short)


def _left(space: int, other: int) -> int:
    if other >= space:
        raise RequestError(
            f"one text of the pair is {other} tokens long and may not be cut, allowed: at most "
            f"{space - 1}, so that something of the other fits"
        )
    return space - other
