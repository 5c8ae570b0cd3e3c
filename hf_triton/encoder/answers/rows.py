"""Turns rows of answers into response arrays, with or without a batch dimension: texts, numbers, or
one JSON text each in the output ``output``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from hf_triton.runtime.request.json_text import written

from ..task import Array, Prepared
from ..texts.encoding import Encoding


def softmax(logits: Array, axis: int = -1) -> Array:
    """Softmax over an axis, without overflow."""
    exponentials = np.exp(logits - logits.max(axis=axis, keepdims=True))
    shares: Array = exponentials / exponentials.sum(axis=axis, keepdims=True)
    return shares


def stack_rows(rows: Sequence[Array], *, batched: bool) -> Array:
    """(rows, ...) where ``batched``; else the only row unchanged."""
    if batched:
        return np.stack(rows)
    (row,) = rows
    return row


def token_counts(encodings: Sequence[Encoding], *, batched: bool) -> dict[str, Array]:
    """Each text's input length in tokens (``num_input_tokens``), and whether it was
    ``truncated``.
    """
    columns = {
        "num_input_tokens": [np.array([len(one)], dtype=np.uint32) for one in encodings],
        "truncated": [np.array([one.is_cut]) for one in encodings],
    }
    return {name: stack_rows(column, batched=batched) for name, column in columns.items()}


def text_rows(rows: Sequence[Sequence[str]], *, batched: bool) -> Array:
    """Texts as bytes, (rows, longest row) where ``batched``; shorter rows end with empty texts."""
    longest = max(map(len, rows))
    filled = [[*row, *([""] * (longest - len(row)))] for row in rows]
    encoded = [np.array([text.encode() for text in row], dtype=np.object_) for row in filled]
    return stack_rows(encoded, batched=batched)


def number_rows(rows: Sequence[Array], *, batched: bool) -> Array:
    """Numbers as float32, (rows, longest row) where ``batched``; shorter rows end with zeros."""
    longest = max(map(len, rows))
    padded = [np.pad(row, (0, longest - len(row))).astype(np.float32) for row in rows]
    return stack_rows(padded, batched=batched)


@dataclass(frozen=True)
class JsonRow:
    """One row of a request: its encodings, and a function that makes the answer from their results,
    in the order of ``encodings``.
    """

    encodings: Sequence[Encoding]
    answer: Callable[[list[Array]], object]


def json_request(rows: Sequence[JsonRow], *, batched: bool) -> Prepared:
    """A request of these rows; the answer is (rows, 1) texts where ``batched``, else (1,)."""

    def answer(results: list[Array]) -> Mapping[str, Array]:
        left = iter(results)
        texts = [[written(row.answer([*islice(left, len(row.encodings))]))] for row in rows]
        return {"output": text_rows(texts, batched=batched)}

    return Prepared([encoding for row in rows for encoding in row.encodings], answer)
