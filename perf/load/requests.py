"""The mixed load: prompts, their order, and how many tokens each asks for, by the seed alone."""

from __future__ import annotations

import random
from collections.abc import Iterator

OUTPUT_LENGTHS = (8, 16, 32, 64, 128)  # tokens
SHORTEST_PROMPT, LONGEST_PROMPT = 8, 64  # tokens
VOCABULARY_SIZE = 16_384
CONSONANTS, VOWELS = "bcdfghjklmnpqrstvwxz", "aeiou"
NUM_SPECIAL_TOKENS = 2  # ids 0 and 1; prompts are made of the others


def word(token_id: int) -> str:
    """The text of one token, three syllables. Prompts and answers are such words between spaces."""
    syllables = (token_id // 10_000, token_id // 100 % 100, token_id % 100)
    return "".join(CONSONANTS[n // 5] + VOWELS[n % 5] for n in syllables)


def requests(seed: int) -> Iterator[tuple[str, int]]:
    """Yields prompts, and how many tokens each asks for. Output lengths come in shuffled blocks
    that hold each once: a short run's mean is that of a long one.
    """
    draw = random.Random(seed)
    while True:
        for max_tokens in draw.sample(OUTPUT_LENGTHS, len(OUTPUT_LENGTHS)):
            length = draw.randint(SHORTEST_PROMPT, LONGEST_PROMPT)
            ids = (draw.randrange(NUM_SPECIAL_TOKENS, VOCABULARY_SIZE) for _ in range(length))
            yield " ".join(map(word, ids)), max_tokens
