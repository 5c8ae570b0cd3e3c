"""Cuts tokenised texts: to a length, or into overlapping windows.

A fast tokenizer keeps truncation as state of its own: of two threads that share it, one's setting
would cut the other's text, or leave it whole. So it is never asked to truncate. Texts are tokenised
whole, cut, and given their special tokens afterwards, which is what it would do itself
(https://github.com/huggingface/tokenizers, ``Tokenizer.post_process`` and ``truncate_encodings``).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

import tokenizers
from hf_runtime.errors import RequestError

Pieces = tokenizers.Encoding


class Cutter:
    """Cuts the texts of one fast tokenizer. May be used by several threads at once."""

    def __init__(self, tokenizer: Any) -> None:
        """Takes away what tokenizer.json says of truncation and padding."""
        self._backend: tokenizers.Tokenizer = tokenizer.backend_tokenizer
        self._backend.no_truncation()
        self._backend.no_padding()
        self._side: str = tokenizer.truncation_side
        self._joiner = _joiner(self._backend)

    def pieces(self, text: str) -> Pieces:
        """A text's tokens without special ones."""
        # Unlike ``encode``, a batch is tokenised without the interpreter's lock: every other
        # request would stand still for as long as a long text takes.
        (found,) = self._backend.encode_batch([text], add_special_tokens=False)
        return found

    def joined(self, first: Pieces, second: Pieces | None = None) -> Pieces:
        """One text or a pair with its special tokens."""
        return self._joiner.post_process(first, second)

    def windows(self, text: Pieces, length: int, stride: int) -> list[Pieces]:
        """A text cut in place into stretches of at most ``length`` tokens, of which neighbours have
        ``stride`` in common. Each is to be joined by itself: joined at once, all but the first
        would keep the token types of a text alone.
        """
        text.truncate(length, stride=stride)
        return [text, *text.overflowing]

    def room(self, max_length: int, *, pair: bool) -> int:
        """How many tokens of the texts fit beside the special ones."""
        return max(0, max_length - self._joiner.num_special_tokens_to_add(pair))

    def cut(
        self, text: str, pair: str | None, max_length: int, strategy: str = "longest_first"
    ) -> Pieces:
        """One text or a pair of at most ``max_length`` tokens. ``strategy`` says what of a pair is
        cut: "longest_first" the longer text, then both; "only_first" or "only_second" that alone.

        Raises:
            RequestError: the text of a pair that may not be cut leaves no room for the other.
        """
        space = self.room(max_length, pair=pair is not None)
        first = self.pieces(text)
        second = None if pair is None else self.pieces(pair)
        longest = _longest(strategy, len(first), 0 if second is None else len(second), space)
        return self.joined(
            self._shortened(first, longest[0]),
            None if second is None else self._shortened(second, longest[1]),
        )

    def pairs(
        self, text: str, seconds: Iterable[str], max_length: int, strategy: str
    ) -> Iterator[Pieces]:
        """The pair of a text and each of ``seconds``, as ``cut`` makes it. The text is tokenised
        once, and once more for every length that it is cut to.
        """
        space = self.room(max_length, pair=True)
        whole = self.pieces(text)
        firsts = {len(whole): whole}
        for second in map(self.pieces, seconds):
            longest = _longest(strategy, len(whole), len(second), space)
            if longest[0] not in firsts:
                firsts[longest[0]] = self._shortened(self.pieces(text), longest[0])
            yield self.joined(firsts[longest[0]], self._shortened(second, longest[1]))

    def _shortened(self, pieces: Pieces, length: int) -> Pieces:
        """Cut in place."""
        if len(pieces) > length:
            pieces.truncate(length, direction=self._side)
        return pieces


def _joiner(backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """The tokenizer's last step alone. Some trim spaces off the offsets: that is done when a text
    becomes pieces, and a second time would trim characters.
    """
    step = backend.post_processor
    made = json.loads(tokenizers.Tokenizer(tokenizers.models.BPE()).to_str())
    made["post_processor"] = None if step is None else _untrimming(json.loads(step.__getstate__()))
    return tokenizers.Tokenizer.from_str(json.dumps(made))


def _untrimming(step: Any) -> Any:
    """A step with every ``trim_offsets`` in it off."""
    if isinstance(step, list):
        return [_untrimming(part) for part in step]
    if not isinstance(step, dict):
        return step
    return {
        key: False if key == "trim_offsets" else _untrimming(part) for key, part in step.items()
    }


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
