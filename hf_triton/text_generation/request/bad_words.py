"""Words to the token sequences that spell them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

NUM_SPELLINGS = 4  # of each word: that often it is tokenised
_BEFORE = "\n"


def word_tokenizer(tokenizer: Any) -> Callable[[str], list[tuple[int, ...]]]:
    """A function from a word to its token sequences at the start of a text and within one, with
    and without a space before it. Only as the tokenizer splits it: a model may spell a word in
    other, rarer pieces.
    """

    def tokens(text: str) -> tuple[int, ...]:
        return tuple(tokenizer(text, add_special_tokens=False).input_ids)

    before = tokens(_BEFORE)

    def spellings(word: str) -> list[tuple[int, ...]]:
        bare = word.lstrip(" ") or word
        found = []
        for text in (bare, f" {bare}"):
            found.append(tokens(text))
            # Some tokenizers put a space before every text: after a line's end there is none.
            within = tokens(_BEFORE + text)
            if within[: len(before)] == before:
                found.append(within[len(before) :])
        return [ids for ids in dict.fromkeys(found) if ids]

    return spellings
