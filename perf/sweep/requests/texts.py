"""Texts of chosen lengths, in tokens where a tokenizer.json is at hand, else in words. Everything
follows from the seed.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable
from pathlib import Path

from generator.errors import PerfError

_COMMON = (
    "the of and to in is it you that he was for on are with as his they be at one have this from "
    "by hot word but what some we can out other were all there when up use your how said an each "
    "she which do their time if will way about many then them write would like so these her long "
    "make thing see him two has look more day could go come did number sound no most people my "
    "over know water than call first who may down side been now find any new work part take get "
    "place made live where after back little only round man year came show every good me give our "
    "under name very through just form much great think say help low line before turn cause same "
    "mean differ move right boy old too does tell sentence set three want air well also play small "
    "end put home read hand port large spell add even land here must big high such follow act why "
    "ask men change went light kind off need house picture try us again animal point mother world"
)
_WORDS = tuple(_COMMON.split())
_FILLERS = ("a", ".", ",", "I", "it", "!", "?", "no")

Count = Callable[[str], int]


class Texts:
    """Draws texts; ``count`` gives a text's length, in ``unit``."""

    def __init__(self, seed: int, count: Count | None = None) -> None:
        self._chance = random.Random(seed)
        self._count = count
        self.unit = "tokens" if count else "words"

    def draw(self, length: int) -> str:
        """A text of ``length``, or where the tokenizer allows no such one, just below it."""
        words, count = self._chance.choices(_WORDS, k=max(1, length)), self._count
        if count is None:
            return " ".join(words)
        lengths = range(1, len(words))  # of texts that are longer by a word: one word is kept
        fitting = bisect_right(lengths, length, key=lambda num: count(" ".join(words[: num + 1])))
        return _filled(" ".join(words[: fitting + 1]), length, count)


def _filled(text: str, length: int, count: Count) -> str:
    """Grown token by token with the shortest that there is."""
    while (now := count(text)) < length:
        longer = (f"{text} {one}" for one in (*_FILLERS, *_WORDS))
        grown = next((one for one in longer if now < count(one) <= length), None)
        if grown is None:
            break
        text = grown
    return text


def counter(tokenizer_file: Path) -> Count:
    """Counts as the model does: special tokens that stand around a text are part of it.

    Raises PerfError for a file that is none. Imports tokenizers.
    """
    import tokenizers

    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(tokenizer_file))
    except Exception as error:  # noqa: BLE001, tokenizers raises nothing narrower
        raise PerfError(f"{tokenizer_file}: not a tokenizer.json: {error}") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return lambda text: len(tokenizer.encode(text).ids)
