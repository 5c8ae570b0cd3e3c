"""Numbers that stand for images and sounds where prompts are compared token by token.

The tokens at whose places an image's features go are the same for every image: as keys of shared
prefixes they are replaced by a number below 0, which is one content's and is given once.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Set
from hashlib import blake2b
from itertools import groupby
from typing import Any

import torch

_MOST_KNOWN = 65536  # contents; one that is forgotten gets another number and shares no more


class ContentNumbers:
    """Gives each digest a number below 0. Any thread may ask."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers: OrderedDict[bytes, int] = OrderedDict()
        self._num_given = 0

    def of(self, digest: bytes) -> int:
        """The digest's number; equal for equal digests as long as it is known."""
        with self._lock:
            if digest not in self._numbers:
                self._num_given += 1
                self._numbers[digest] = -self._num_given
                if len(self._numbers) > _MOST_KNOWN:
                    self._numbers.popitem(last=False)
            self._numbers.move_to_end(digest)
            return self._numbers[digest]

    def replace(
        self, token_ids: list[int], placeholders: Set[int], digests: tuple[bytes, ...]
    ) -> list[int]:
        """``token_ids`` with numbers in the place of ``placeholders``: each run's is that of the
        digest in its order. Where runs are not one for each digest, all get the number of all
        digests, and where there is none, the first token does.
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
    """A digest of each item's part of a processor's tensors; where they can't be told apart, of all
    and its number.
    """
    items = items_of(inputs, num_items)
    if items is not None:
        return tuple(_digest(list(item.values())) for item in items)
    whole = _digest([value for _, value in sorted(inputs.items())])
    return tuple(whole + bytes([item % 256]) for item in range(num_items))


def items_of(inputs: Mapping[str, Any], num_items: int) -> list[dict[str, torch.Tensor]] | None:
    """Each item's part of a processor's tensors, with as many axes as they have; None where the
    items can't be told apart.
    """
    parts: dict[str, list[torch.Tensor]] = {}
    for name, value in sorted(inputs.items()):
        found = _parts(name, value, inputs, num_items)
        if found is None:
            return None
        parts[name] = found
    return [{name: own[item] for name, own in parts.items()} for item in range(num_items)]


def _parts(
    name: str, value: Any, inputs: Mapping[str, Any], num_items: int
) -> list[torch.Tensor] | None:
    """What of a tensor belongs to each item; None where that can't be told."""
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
            found.update(_flat(value).view(torch.uint8).numpy().data)
        else:
            found.update(repr(value).encode())
    return found.digest()


def _flat(value: torch.Tensor) -> torch.Tensor:
    """A copy in one piece: a part of one element keeps its whole's stride else."""
    return value.reshape(-1).clone(memory_format=torch.contiguous_format)
