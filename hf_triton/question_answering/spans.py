"""Finds the best answer spans of one window from its tokens' start and end logits.

Source: transformers 4.57, pipelines/question_answering.py, ``select_starts_ends`` and
``decode_spans`` (5.x has no such pipeline); after Chen et al., "Reading Wikipedia to Answer
Open-Domain Questions", 2017.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hf_triton.encoder.answers.rows import softmax
from hf_triton.encoder.task import Array


@dataclass(frozen=True)
class Span:
    """The context's tokens from ``start`` to ``end``, both included, counted from its first."""

    start: int
    end: int
    score: float


@dataclass(frozen=True)
class Scores:
    """Probabilities of a window's tokens, (context,) each: of being the answer's start, and its
    end. ``null`` is the probability of no answer, which the window's first token stands for.
    """

    start: Array
    end: Array
    null: float

    @classmethod
    def of(cls, logits: Array, *, has_null: bool) -> Scores:
        """``logits`` (tokens, 2): those of the context, after the window's first token where
        ``has_null``.
        """
        start, end = softmax(logits, axis=0).T
        if not has_null:
            return cls(start, end, 0.0)
        return cls(start[1:], end[1:], float(start[0] * end[0]))


def best_spans(scores: Scores, num_spans: int, max_answer_len: int) -> Iterator[Span]:
    """The best ``num_spans`` stretches of at most ``max_answer_len`` tokens, best first; fewer
    where there are no more.
    """
    num_tokens = len(scores.start)
    longest = min(max_answer_len, num_tokens)
    beyond = np.full(longest - 1, -1.0, dtype=scores.end.dtype)  # no end there
    ends = np.lib.stride_tricks.sliding_window_view(np.append(scores.end, beyond), longest)
    flat = (scores.start[:, None] * ends).ravel()  # (tokens * longest,)
    flat[np.broadcast_to(ends < 0, ends.shape).ravel()] = -1.0
    for place in _highest(flat, num_spans):
        start, length = divmod(int(place), longest)
        if flat[place] >= 0:
            yield Span(start, start + length, float(flat[place]))


def _highest(values: Array, num: int) -> Array:
    """The places of the highest values, highest first."""
    if num < len(values):
        places = np.argpartition(-values, num)[:num]
        best: Array = places[np.argsort(-values[places], kind="stable")]
        return best
    return np.argsort(-values, kind="stable")
