"""Linear layers with LoRA adapters: each token gets its own adapter's low-rank change.

The adapters' matrices of a layer are concatenated by rank. A step multiplies its tokens with the
columns of the adapters that it needs, sets the columns of other adapters to zero, and multiplies
back: two matrix products, however many adapters share the step. Steps without adapters compute the
base layers alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

Linear = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class LowRank:
    """An adapter's change of one layer: ``x @ down.T @ up.T``, its scaling in ``up``.

    ``down`` is (rank, in_features), ``up`` (out_features, rank).
    """

    down: torch.Tensor
    up: torch.Tensor

    @property
    def rank(self) -> int:
        return self.down.shape[0]


@dataclass(frozen=True)
class Adapter:
    """An adapter's name, and its low-rank changes by the names of the model's modules."""

    name: str
    parts: dict[str, LowRank]


class RowAdapters:
    """Which adapter computes each row of a forward: its number, from 1 in the model's order, or 0.

    Rows before the first and behind the last that has one are left alone.
    """

    def __init__(self, numbers: Sequence[int], device: torch.device) -> None:
        """At least one number is not 0."""
        found = [number for number in numbers if number]
        self.lowest, self.highest = min(found), max(found)
        self.is_uniform = len(found) == len(numbers) and self.lowest == self.highest
        first = next(row for row, number in enumerate(numbers) if number)
        last = next(row for row in reversed(range(len(numbers))) if numbers[row])
        self.rows = slice(None) if self.is_uniform else slice(first, last + 1)
        self.numbers = torch.tensor(numbers[self.rows], device=device)
        self._masks: dict[tuple[object, ...], torch.Tensor] = {}

    def mask(self, layer: AdaptedLinear, columns: slice) -> torch.Tensor:
        """(rows, columns): 1 where the column is of the row's own adapter, 0 elsewhere."""
        key = (layer.ranks, layer.down.device, layer.down.dtype)
        if key not in self._masks:
            numbers = self.numbers.to(layer.down.device).unsqueeze(1)
            self._masks[key] = (numbers == layer.owners[columns]).to(layer.down.dtype)
        return self._masks[key]


@dataclass(frozen=True)
class StepAdapters:
    """What a forward's rows are computed by: all ``num_tokens`` of them, and those whose logits are
    wanted, which are all that a model's head sees, and of some runners the last layer. None where
    no row has an adapter.
    """

    num_tokens: int
    tokens: RowAdapters | None
    sampled: RowAdapters | None

    def of(self, num_rows: int) -> RowAdapters | None:
        """Those of as many rows as a layer is given; where all are sampled, both are the same."""
        return self.tokens if num_rows == self.num_tokens else self.sampled


class Adapters:
    """All adapters of a model; ``step`` is about the forward at hand, None where it has none."""

    def __init__(self, adapters: list[Adapter]) -> None:
        self.adapters = adapters
        self.names = tuple(adapter.name for adapter in adapters)
        self.step: StepAdapters | None = None
        self._numbers = {name: number for number, name in enumerate(self.names, 1)}

    def number(self, name: str | None) -> int:
        """What stands for an adapter in RowAdapters."""
        return 0 if name is None else self._numbers[name]

    @contextmanager
    def applied(self, step: StepAdapters) -> Iterator[None]:
        """Applies ``step`` to the forwards within. One engine thread a process: no lock."""
        self.step = step
        try:
            yield
        finally:
            self.step = None


class AdaptedLinear(nn.Module):
    """``base`` and the adapters' changes of it."""

    def __init__(
        self,
        base: nn.Module,
        parts: Sequence[LowRank | None],
        adapters: Adapters,
        like: torch.Tensor,
    ) -> None:
        """``parts`` has an entry for each adapter; the weights are kept as ``like`` is."""
        super().__init__()
        self.base, self._adapters = base, adapters
        given = [part for part in parts if part is not None]
        self.in_features, self.out_features = given[0].down.shape[1], given[0].up.shape[0]
        self.ranks = tuple(0 if part is None else part.rank for part in parts)
        self._ends = (0, *accumulate(self.ranks))
        self.down = torch.cat([part.down for part in given]).to(like)  # (ranks, in_features)
        self.up = torch.cat([part.up.t() for part in given]).to(like)  # (ranks, out_features)
        owners = [number for number, rank in enumerate(self.ranks, 1) for _ in range(rank)]
        self.owners = torch.tensor(owners, device=like.device)

    @property
    def weight(self) -> Any:
        """The base's, for modules that look at its dtype or device."""
        return self.base.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., in_features) -> (..., out_features)."""
        y: torch.Tensor = self.base(x)
        self.add(x, y)
        return y

    def add(self, x: torch.Tensor, y: torch.Tensor) -> None:
        """Adds to ``y`` (..., out_features) what the rows' adapters make of ``x``."""
        if self._adapters.step is None:
            return
        flat = x.reshape(-1, self.in_features)
        step = self._adapters.step.of(len(flat))
        if step is None:
            return
        columns = slice(self._ends[step.lowest - 1], self._ends[step.highest])
        if columns.start == columns.stop:
            return
        flat = flat[step.rows].to(self.down.device)  # a head's comes from another GPU, where spread
        low = F.linear(flat, self.down[columns])
        if not step.is_uniform:
            low *= step.mask(self, columns)
        y.view(-1, self.out_features)[step.rows].addmm_(low, self.up[columns])


def attach(model: Any, adapters: Adapters) -> None:
    """Puts the adapters beside the model's layers, in place."""
    names = dict.fromkeys(name for adapter in adapters.adapters for name in adapter.parts)
    for name in names:
        parent_name, _, child_name = name.rpartition(".")
        parent, base = model.get_submodule(parent_name), model.get_submodule(name)
        like = torch.empty(0, dtype=model.dtype, device=_device(base, model))
        parts = [adapter.parts.get(name) for adapter in adapters.adapters]
        layer = AdaptedLinear(base, parts, adapters, like)
        setattr(parent, child_name, layer)


def _device(layer: Any, model: Any) -> torch.device:
    """The device of a layer; a quantized one may have no tensor called weight."""
    held = getattr(layer, "weight", None)
    if not isinstance(held, torch.Tensor):
        held = next(chain(layer.parameters(), layer.buffers()), model)
    device: torch.device = held.device
    return device


def without_adapters(part: Any) -> Any:
    """The layer without its adapters."""
    return part.base if isinstance(part, AdaptedLinear) else part


def with_adapters(linear: Linear, parts: Sequence[Any]) -> Linear:
    """``linear``, which computes the base layers of all ``parts`` as one, with their adapters."""
    ends = [0, *accumulate(part.out_features for part in parts)]
    adapted = [
        (part, slice(start, end))
        for part, start, end in zip(parts, ends, ends[1:], strict=False)
        if isinstance(part, AdaptedLinear)
    ]
    if not adapted:
        return linear

    def forward(x: torch.Tensor) -> torch.Tensor:
        y = linear(x)
        for part, columns in adapted:
            part.add(x, y[..., columns])
        return y

    return forward
