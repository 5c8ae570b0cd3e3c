"""Cuts tokenised texts: to a length, or into overlapping windows.

A fast tokenizer keeps truncation as state of its own: of two threads that share it, one's setting
would cut the other's text, or leave it whole. So it is never asked to truncate. Texts are tokenised
whole, cut, and given their special tokens afterwards, which is what it would do itself
(https://github.com/huggingface/tokenizers, ``Tokenizer.post_process`` and ``truncate_encodings``).
"""

from __future__ import annotations

from typing import Any

import tokenizers

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


def cut(tokenizer: Any, text: str, pair: str | None, max_length: int) -> Pieces:
    """One text or a pair of at most ``max_length`` tokens; the longer of the two is cut first."""
    room = max(0, max_length - tokenizer.num_special_tokens_to_add(pair is not None))
    first = pieces_of(tokenizer, text)
    second = None if pair is None else pieces_of(tokenizer, pair)
    lengths = _fitting(len(first), 0 if second is None else len(second), room)
    for pieces, length in zip((first, second), lengths, strict=True):
        if pieces is not None and len(pieces) > length:
            pieces.truncate(length, direction=tokenizer.truncation_side)
    return joined(tokenizer, first, second)[0]


def _fitting(first: int, second: int, room: int) -> tuple[int, int]:
    """Two lengths cut to ``room`` together, the longer one first."""
    if first + second <= room:
        return first, second
    if not second:
        return room, 0
    short, long = sorted((first, second))
    if short + max(short, room - short) <= room:
        long = max(short, room - short)
    else:
        short, long = room // 2, room - room // 2
    return (short, long) if first <= second else (long, short)
