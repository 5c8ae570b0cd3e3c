"""Truncates tokenised texts to a length, or splits them into overlapping windows.

A fast tokenizer keeps truncation as its own state: where two threads share it, the setting of one
would cut the other's text. So the tokenizer never truncates. Texts are tokenised whole, cut, and
given their special tokens afterwards, as the tokenizer would do
(https://github.com/huggingface/tokenizers, ``Tokenizer.post_process`` and ``truncate_encodings``).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import tokenizers
from tokenizers.processors import TemplateProcessing

from hf_triton.runtime.errors import RequestError
from hf_triton.runtime.tokenizing.lengths import CUT, check_characters, tokens_of_part

Tokenized = tokenizers.Encoding


@dataclass(frozen=True)
class CalledTokens:
    """The result of a transformers tokenizer's call, in the words of ``tokenizers.Encoding``."""

    ids: list[int]
    type_ids: list[int] | None
    special_tokens_mask: list[int]
    offsets: list[tuple[int, int]] | None
    overflowing: list[int]

    def __len__(self) -> int:
        return len(self.ids)


Tokens: TypeAlias = Tokenized | CalledTokens


class Truncator:
    """Truncates the texts of one fast tokenizer. May be used by several threads at once."""

    def __init__(self, tokenizer: Any, *, adds_special_tokens: bool = True) -> None:
        """Turns off the truncation and padding that tokenizer.json sets."""
        self._backend: tokenizers.Tokenizer = tokenizer.backend_tokenizer
        self._backend.no_truncation()
        self._backend.no_padding()
        self._backend.encode_special_tokens = tokenizer.split_special_tokens
        self._side: str = tokenizer.truncation_side
        self._adds_special_tokens = adds_special_tokens
        self._post_processor = _post_processor(self._backend.post_processor)

    def pieces(self, text: str, *, has_places: bool = True) -> Tokenized:
        """A text's tokens without special ones, and in half the time without their places in it."""
        # Unlike ``encode``, a batch is tokenised without the interpreter's lock: every other
        # request would stand still for as long as a long text takes.
        encode = self._backend.encode_batch if has_places else self._backend.encode_batch_fast
        (found,) = encode([text], add_special_tokens=False)
        return found

    def joined(self, first: Tokenized, second: Tokenized | None = None) -> Tokenized:
        """One text or a pair with its special tokens."""
        return self._post_processor.post_process(first, second, self._adds_special_tokens)

    def room(self, max_length: int, *, pair: bool) -> int:
        """Returns the number of tokens of the texts that fit beside the special ones."""
        if not self._adds_special_tokens:
            return max_length
        return max(0, max_length - self._post_processor.num_special_tokens_to_add(pair))

    def pairs(
        self,
        field: str,
        text: str,
        seconds: Sequence[str | None],
        max_length: int,
        strategy: str,
        *,
        cuts: bool,
        has_places: bool,
    ) -> Iterator[Tokenized]:
        """The pair of a text and each of ``seconds``, or with None the text alone; with ``cuts`` of
        at most ``max_length`` tokens. ``strategy`` says what is cut: "longest_first" the longer
        text, then both; "only_first" or "only_second" that alone. With ``has_places`` a token's
        place in the text is wanted. The text is tokenised once, and once more for every length that
        it is cut to: of one with many labels each would take as long as the first. Raises
        RequestError.
        """
        space = self.room(max_length, pair=seconds[0] is not None)
        read: Callable[[str], Tokenized] = partial(self.pieces, has_places=has_places)
        if cuts:
            read = partial(self._part, field, num_tokens=space, has_places=has_places)
        whole = read(text)
        num_tokens, firsts = len(whole), {len(whole): whole}
        for given in seconds:
            second = None if given is None else read(given)
            kept = num_tokens, len(second or ())
            if cuts:
                kept = _kept_lengths(field, strategy, *kept, space)
            if kept[0] not in firsts:
                first = whole if len(seconds) == 1 else read(text)
                firsts[kept[0]] = self._shortened(first, kept[0])
            if second is not None:
                second = self._shortened(second, kept[1])
            yield self.joined(firsts[kept[0]], second)

    def _part(self, field: str, text: str, num_tokens: int, *, has_places: bool) -> Tokenized:
        from_end = self._side == "left"
        if from_end and has_places:  # which count from the text's beginning
            check_characters(field, len(text), num_tokens)
            return self.pieces(text)
        pieces = partial(self.pieces, has_places=has_places)
        return tokens_of_part(field, text, num_tokens, pieces, keeps_end=from_end)

    def _shortened(self, pieces: Tokenized, length: int) -> Tokenized:
        if len(pieces) > length:
            pieces.truncate(length, direction=self._side)
        return pieces


def _post_processor(step: Any) -> tokenizers.Tokenizer:
    """A tokenizer's post-processor alone, which adds special tokens. Byte-level ones also trim
    spaces off the offsets: that is done when a text is tokenised, and a second time would trim
    characters.
    """
    bare = tokenizers.Tokenizer(tokenizers.models.BPE())
    if step is None:
        bare.post_processor = TemplateProcessing(single="$A", pair="$A $B:1", special_tokens=[])
        return bare
    made = json.loads(bare.to_str())
    made["post_processor"] = json.loads(
        step.__getstate__(),
        object_hook=lambda part: part | dict.fromkeys(part.keys() & {"trim_offsets"}, False),
    )
    return tokenizers.Tokenizer.from_str(json.dumps(made))


def _kept_lengths(
    field: str, strategy: str, first: int, second: int, space: int
) -> tuple[int, int]:
    """Returns the number of tokens that each of two texts keeps, together at most ``space``."""
    if first + second <= space:
        return first, second
    if not second or strategy == "only_first":
        return _room_beside(field, space, second), second
    if strategy == "only_second":
        return first, _room_beside(field, space, first)
    short, long = sorted((first, second))
    if 2 * short <= space:
        long = space - short
    else:
        short, long = space // 2, space - space // 2
    return (short, long) if first <= second else (long, short)


def _room_beside(field: str, space: int, other: int) -> int:
    if other >= space:
        raise RequestError(
            f"{field}: one text of the pair is {other} tokens long and may not be cut, allowed: "
            f"at most {space - 1}, so that something of the other fits"
        )
    return space - other


@dataclass(frozen=True)
class WindowSplitter:
    """Splits texts longer than a model takes into overlapping windows, which are computed side by
    side. May be used by several threads at once.
    """

    truncator: Truncator
    max_num_windows: int

    def pieces(self, field: str, text: str, max_length: int, *, cuts: bool) -> Tokenized:
        """A text's tokens without special ones; with ``cuts`` at least those of the windows. Raises
        RequestError.
        """
        most = self.max_num_windows * max_length
        if not cuts:
            check_characters(field, len(text), most, CUT)
        found = tokens_of_part(field, text, most, self.truncator.pieces)
        if not len(found):
            raise RequestError(f"{field}: the tokenizer makes no token of it, send another text")
        return found

    def windows(
        self,
        field: str,
        text: Tokenized,
        *,
        max_length: int,
        stride: int,
        cuts: bool,
        first: Tokenized | None = None,
    ) -> list[Tokenized]:
        """Cuts ``text`` in place into windows of at most ``max_length`` tokens, special ones
        included, of which neighbours have ``stride`` of the text in common. Each begins with all of
        ``first``, the pair's first text, beside which ``stride`` + 1 must fit. With ``cuts`` the
        rest of a text of too many windows is dropped. Raises RequestError.
        """
        space = self.truncator.room(max_length, pair=first is not None) - len(first or ())
        parts, step = [text], space - stride
        if len(text) > space:
            num_windows = 1 + math.ceil((len(text) - space) / step)
            if num_windows > self.max_num_windows and not cuts:
                raise RequestError(
                    f"{field}: got {len(text)} tokens, which are {num_windows} windows, allowed: "
                    f"{self.max_num_windows} (max_num_windows); {CUT}"
                )
            if num_windows > self.max_num_windows:
                text.truncate(space + step * (self.max_num_windows - 1))
            text.truncate(space, stride=stride)
            parts = [text, *text.overflowing]
        # Joined at once, all but the first would keep the token types of a text alone.
        pairs = ((part, None) if first is None else (first, part) for part in parts)
        return [self.truncator.joined(*pair) for pair in pairs]
