"""A mixture of all texts that the demo encoders are to read; knows no model."""

from __future__ import annotations

import random

from demo.corpus.documents import document
from demo.corpus.entities import named_sentence
from demo.corpus.paraphrases import TOPICS, paraphrases
from demo.corpus.passages import asked
from demo.corpus.reviews import review

NUM_TEXTS = 12_000


def texts(num_texts: int, seed: int) -> list[str]:
    """Return texts of everything that the demo encoders are to read, a few sentences each."""
    rng = random.Random(seed)
    return [_text(rng) for _ in range(num_texts)]


def _text(rng: random.Random) -> str:
    kind = rng.randrange(10)
    if kind < 4:
        return document(rng)[:300]
    if kind < 7:
        return " ".join(paraphrases(rng, rng.choice(TOPICS), rng.randint(1, 3)))
    if kind == 7:
        return review(rng)[0]
    if kind == 8:
        return named_sentence(rng)[0]
    passage = asked(rng)
    return f"{passage.question} {passage.context}"
