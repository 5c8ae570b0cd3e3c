"""Rows of answers to the arrays of a response: with a batch dimension, or without."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def of_rows(rows: Sequence[Array], *, batched: bool) -> Array:
    """(rows, ...) where ``batched``; else the only row as it is."""
    if batched:
        return np.stack(rows)
    (row,) = rows
    return row


def text_rows(rows: Sequence[Sequence[str]], *, batched: bool) -> Array:
    """Texts as bytes, (rows, longest row) where ``batched``; shorter rows end with empty texts."""
    longest = max(map(len, rows))
    filled = [[*row, *([""] * (longest - len(row)))] for row in rows]
    encoded = [np.array([text.encode() for text in row], dtype=np.object_) for row in filled]
    return of_rows(encoded, batched=batched)


def number_rows(rows: Sequence[Array], *, batched: bool) -> Array:
    """Numbers as float32, (rows, longest row) where ``batched``; shorter rows end with zeros."""
    longest = max(map(len, rows))
    padded = [np.pad(row, (0, longest - len(row))).astype(np.float32) for row in rows]
    return of_rows(padded, batched=batched)
