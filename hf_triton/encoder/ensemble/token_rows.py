"""Encodings as rows of tokens and back: the tensors between an ensemble's steps.

``input_ids``, ``attention_mask`` and ``token_type_ids`` are (rows, longest row) int64, padded on
the right, as every exported encoder takes them. Knows no tokenizer and no model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hf_triton.runtime.errors import RequestError

from ..texts.encoding import Encoding

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class RowLimits:
    """What a model can be given. ``num_token_types`` is 0 where it takes none."""

    max_length: int
    vocab_size: int
    num_token_types: int


def token_rows(
    encodings: Sequence[Encoding], pad_id: int, *, multiple: int, max_length: int
) -> dict[str, Array]:
    """The three tensors by name; the longest row is filled up to a multiple of ``multiple`` tokens,
    but not beyond ``max_length``.
    """
    longest = max(map(len, encodings))
    length = max(longest, min(-(-longest // multiple) * multiple, max_length))
    ids = np.full((len(encodings), length), pad_id, dtype=np.int64)
    mask, types = np.zeros_like(ids), np.zeros_like(ids)
    for row, encoding in enumerate(encodings):
        ids[row, : len(encoding)] = encoding.input_ids
        mask[row, : len(encoding)] = 1
        if encoding.token_type_ids is not None:
            types[row, : len(encoding)] = encoding.token_type_ids
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}


def encodings_of(rows: Mapping[str, Array], limits: RowLimits) -> list[Encoding]:
    """The encoding of each row.

    Raises:
        RequestError: tensors that don't fit together, or tokens that the model does not have: one
            such row would fail the step that it shares with other callers'.
    """
    ids, mask, types = (rows[name] for name in ("input_ids", "attention_mask", "token_type_ids"))
    for name, other in (("attention_mask", mask), ("token_type_ids", types)):
        if other.shape != ids.shape:
            raise RequestError(f"{name}: got shape {other.shape}, input_ids has {ids.shape}")
    lengths = _lengths(mask)
    if max(lengths) > limits.max_length:
        got = f"got {max(lengths)} tokens, this model takes at most {limits.max_length}"
        raise RequestError(f"input_ids: {got}")
    _check_range("input_ids", ids, limits.vocab_size)
    if limits.num_token_types:
        _check_range("token_type_ids", types, limits.num_token_types)
    kinds = types.tolist() if limits.num_token_types else [None] * len(lengths)
    found = zip(ids.tolist(), kinds, lengths, strict=True)
    return [Encoding(row[:n], None if kind is None else kind[:n]) for row, kind, n in found]


def padded_outputs(outputs: Sequence[Array], length: int) -> Array:
    """float32 (rows, length, size) of outputs (tokens, size), zeros where there is no token; of
    outputs (size,), (rows, size).
    """
    if outputs[0].ndim == 1:
        return np.stack(outputs)
    found = np.zeros((len(outputs), length, outputs[0].shape[1]), dtype=np.float32)
    for row, output in enumerate(outputs):
        found[row, : len(output)] = output
    return found


def _lengths(mask: Array) -> list[int]:
    """How many tokens each row has; they come first in it."""
    lengths = mask.sum(axis=1)
    expected = np.arange(mask.shape[1])[None, :] < lengths[:, None]
    if not len(mask) or not lengths.all() or not np.array_equal(mask, expected):
        allowed = "allowed: in every row ones for its tokens, at least one, then zeros"
        raise RequestError(f"attention_mask: a row has gaps, no token or other numbers; {allowed}")
    found: list[int] = lengths.tolist()
    return found


def _check_range(name: str, values: Array, limit: int) -> None:
    if values.min() < 0 or values.max() >= limit:
        wrong = values[(values < 0) | (values >= limit)][0]
        raise RequestError(f"{name}: got {wrong}, allowed: 0 to {limit - 1}")
