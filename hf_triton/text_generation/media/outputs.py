"""What an encoder computes of several images or sounds together, told apart and put together again.

Knows how transformers' outputs are built, and no model.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from itertools import accumulate, pairwise
from typing import Any

import torch

# Here a list of tensors has one for each item, elsewhere for each layer, as one of lists has.
_FEATURES = "pooler_output"
_ON_THE_WAY = ("last_hidden_state", "hidden_states", "attentions")


def lean(found: Any) -> Any:
    """What of an output a decoder reads: without the states that its features are made of."""
    if not isinstance(found, dict) or found.get(_FEATURES) is None:
        return copy.copy(found)
    kept = {name: value for name, value in found.items() if name not in _ON_THE_WAY}
    return type(found)(**kept)


def split(found: Any, rows: list[list[int]]) -> list[Any]:
    """An output of several items, item by item, in memory of their own. ``rows``: of each tensor
    that the encoder was given, how many of its rows are each item's; the first are the pixels.

    Raises:
        ValueError: what is each item's can't be told.
    """
    if not isinstance(found, dict):
        return _split(found, rows, by_item=True)
    fields = {name: _split(value, rows, by_item=name == _FEATURES) for name, value in found.items()}
    return [
        type(found)(**{name: values[item] for name, values in fields.items()})
        for item in range(len(rows[0]))
    ]


def joined(outputs: list[Any]) -> Any:
    """The output of several items in their order, given that of each."""
    first = outputs[0]
    if len(outputs) == 1:
        return copy.copy(first)
    if not isinstance(first, dict):
        return _joined(outputs, by_item=True)
    return type(first)(
        **{
            name: _joined([one[name] for one in outputs], by_item=name == _FEATURES)
            for name in first
        }
    )


def tensors_of(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict | list | tuple):
        for part in value.values() if isinstance(value, dict) else value:
            yield from tensors_of(part)


def _split(value: Any, rows: list[list[int]], *, by_item: bool) -> list[Any]:
    if value is None:
        return [None] * len(rows[0])
    if isinstance(value, torch.Tensor) and value.dim():
        return [part.clone() for part in value.split(_shares(len(value), rows))]
    if not isinstance(value, list | tuple):
        raise ValueError(f"an encoder returned {type(value).__name__}")
    if _is_by_layer(value, by_item=by_item):
        layers = [_split(layer, rows, by_item=True) for layer in value]
        return [[layer[item] for layer in layers] for item in range(len(rows[0]))]
    ends = [0, *accumulate(_shares(len(value), rows))]
    pairs = pairwise(ends)
    return [[one.clone() for one in value[start:end]] for start, end in pairs]


def _joined(values: list[Any], *, by_item: bool) -> Any:
    if values[0] is None:
        return None
    if isinstance(values[0], torch.Tensor):
        return torch.cat(values)
    if _is_by_layer(values[0], by_item=by_item):
        return [_joined(list(layer), by_item=True) for layer in zip(*values, strict=True)]
    return [one for value in values for one in value]


def _is_by_layer(value: Any, *, by_item: bool) -> bool:
    return not by_item or any(isinstance(layer, list | tuple) for layer in value)


def _shares(length: int, rows: list[list[int]]) -> list[int]:
    """How many of ``length`` are each item's: one for each row of a tensor that was given, else
    as many times more or fewer as all have of the first one's.
    """
    for counts in rows:
        if sum(counts) == length:
            return counts
    total = sum(rows[0])
    if any(length * count % total for count in rows[0]):
        raise ValueError(f"an encoder returned {length} for {total} rows")
    return [length * count // total for count in rows[0]]
