"""Digests of images and sounds, and numbers below 0 that stand for them where prompts are compared
token by token: the placeholders of all images are the same tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from functools import lru_cache
from hashlib import blake2b
from itertools import count, groupby
from typing import Any

import torch

_MOST_KNOWN = 65536  # contents; one that is forgotten gets another number and shares no more


class ContentNumbers:
    """Gives each digest a number below 0, on any thread. Where two first ask for one at the same
    time, it may get two numbers, and their prompts share nothing.
    """

    def __init__(self) -> None:
        numbers = count(-1, -1)
        self.of: Callable[[bytes], int] = lru_cache(_MOST_KNOWN)(lambda digest: next(numbers))

    def replace(
        self, token_ids: list[int], placeholders: Set[int], digests: tuple[bytes, ...]
    ) -> list[int]:
        """``token_ids`` with a digest's number in the place of each run of ``placeholders``. Where
        runs and digests don't match, all runs, or else the first token, get the number of all
        digests together.
        """
        runs = [
            (is_placeholder, list(run))
            for is_placeholder, run in groupby(token_ids, placeholders.__contains__)
        ]
        num_runs = sum(is_placeholder for is_placeholder, _ in runs)
        if num_runs != len(digests):
            whole = self.of(b"".join(digests))
            if not num_runs:
                return [whole, *token_ids[1:]]
            digests = (b"".join(digests),) * num_runs
        left = iter(digests)
        keys: list[int] = []
        for is_placeholder, run in runs:
            keys += [self.of(next(left))] * len(run) if is_placeholder else run
        return keys


def digests_of(inputs: Mapping[str, Any], num_items: int) -> tuple[bytes, ...]:
    """A digest of each item's part of a processor's tensors; where parts can't be told apart, of
    all tensors and the item's number.
    """
    items = items_of(inputs, num_items)
    if items is not None:
        return tuple(_digest(list(item.values())) for item in items)
    whole = _digest([value for _, value in sorted(inputs.items())])
    return tuple(whole + bytes([item % 256]) for item in range(num_items))


def items_of(inputs: Mapping[str, Any], num_items: int) -> list[dict[str, torch.Tensor]] | None:
    """Each item's part of a processor's tensors; None where the items can't be told apart."""
    parts: dict[str, Any] = {}
    for name, value in sorted(inputs.items()):
        parts[name] = _parts(name, value, inputs, num_items)
        if parts[name] is None:
            return None
    return [{name: own[item] for name, own in parts.items()} for item in range(num_items)]


def _parts(
    name: str, value: Any, inputs: Mapping[str, Any], num_items: int
) -> list[torch.Tensor] | None:
    """Splits a tensor by items, or returns None where they can't be told apart."""
    if not isinstance(value, torch.Tensor) or not value.dim():
        return None
    grid = inputs.get("image_grid_thw")
    if name == "pixel_values" and isinstance(grid, torch.Tensor):
        counts = grid.prod(-1).tolist()
        if len(counts) == num_items and sum(counts) == len(value):
            return list(value.split(counts))
    if len(value) == num_items:
        return list(value.split(1))
    if len(value) == 1 and value.dim() > 1 and value.shape[1] == num_items:
        return list(value.split(1, dim=1))
    return [value] if num_items == 1 else None


def _digest(values: list[Any]) -> bytes:
    found = blake2b(digest_size=32)
    for value in values:
        if isinstance(value, torch.Tensor):
            found.update(f"{value.dtype} {tuple(value.shape)}".encode())
            # A copy in one piece: a part of one element keeps its whole's stride else.
            flat = value.reshape(-1).clone(memory_format=torch.contiguous_format)
            found.update(flat.view(torch.uint8).numpy().data)
        else:
            found.update(repr(value).encode())
    return found.digest()
