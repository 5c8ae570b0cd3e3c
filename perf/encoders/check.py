"""Whether an embedding is the right one. Knows neither torch nor how the embedding came."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from perf.load.closed_loop import AnswerError

SIZE = 384
MAX_MODEL_LEN = 512  # tokens
CHECKED_EVERY = 8
NUM_CHECKED = 32
"""So many texts of a load are compared, every eighth of the first; of all others the size is."""

Embedding = Sequence[float]
References = Mapping[int, Embedding]  # a request's index -> its embedding, of length 1


@dataclass(frozen=True)
class Check:
    """What a target's embeddings are compared with, and how alike they have to be."""

    references: References
    min_cosine: float

    def embedding(self, index: int, embedding: Embedding) -> None:
        """Raises ``AnswerError`` for an embedding of another size, length, or direction."""
        if len(embedding) != SIZE:
            raise AnswerError(f"got {len(embedding)} numbers, expected {SIZE}")
        length = math.hypot(*embedding)
        if not 0.99 < length < 1.01:
            raise AnswerError(f"got an embedding of length {length:.3f}, expected 1")
        reference = self.references.get(index)
        if reference is None:
            return
        alike = cosine(embedding, reference)
        if not alike > self.min_cosine:
            raise AnswerError(f"cosine to the reference {alike:.5f}, expected > {self.min_cosine}")


def cosine(one: Embedding, other: Embedding) -> float:
    """Of the angle between two vectors."""
    product = math.fsum(a * b for a, b in zip(one, other, strict=True))
    return product / (math.hypot(*one) * math.hypot(*other))


def checked_indices() -> range:
    """The requests of each load that are compared with a reference."""
    return range(0, NUM_CHECKED * CHECKED_EVERY, CHECKED_EVERY)


def read_references(file: Path, load: str) -> References:
    """Those of one load; none where the file has none of it."""
    by_load = json.loads(file.read_text(encoding="utf-8"))
    return {int(index): embedding for index, embedding in by_load.get(load, {}).items()}
