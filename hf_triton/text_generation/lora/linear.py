"""Linear layers with LoRA adapters: each token gets its own adapter's low-rank change.

Steps without adapters compute the base layers alone. Knows no steps: rows.py has which adapter a
row has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any

import torch
from torch import nn

from hf_triton.runtime.devices.prepacked_linear import READ_BY_PARENT
from hf_triton.runtime.errors import LoadError

from .rows import DeviceRows, Matrices, StepAdapters

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


class Adapters:
    """All adapters of a model; ``step`` is about the forward at hand, None where it has none."""

    def __init__(self, adapters: list[Adapter]) -> None:
        self.adapters = adapters
        self.names = tuple(adapter.name for adapter in adapters)
        self.step: StepAdapters | None = None
        self._numbers = {name: number for number, name in enumerate(self.names, 1)}

    def number(self, name: str | None) -> int:
        """What stands for an adapter in a row: its number from 1, or 0 for none."""
        return 0 if name is None else self._numbers[name]

    @contextmanager
    def applied(self, step: StepAdapters) -> Iterator[None]:
        """Applies ``step`` to the forwards within. One engine thread a process: no lock."""
        self.step = step
        try:
            yield
        finally:
            self.step = None

    def on_device(
        self, numbers: torch.Tensor, sampled: torch.Tensor
    ) -> AbstractContextManager[None]:
        """Applies the adapters whose numbers are on the device to one forward: ``numbers``
        (tokens,) int32 of all its tokens, ``sampled`` (rows,) of those that its head sees. What the
        layers then compute has the same shapes whatever the numbers are. Inside a CUDA graph it is
        entered while the graph is captured, and a replay reads the numbers anew.
        """
        tokens, rows = DeviceRows(numbers), DeviceRows(sampled)
        return self.applied(StepAdapters(len(numbers), len(sampled), tokens, rows))


class AdaptedLinear(nn.Module):
    """``base`` and the adapters' changes of it."""

    is_one_layer = True  # to who reads the model: base alone is not what it computes

    def __init__(
        self,
        base: nn.Module,
        parts: Sequence[LowRank | None],
        adapters: Adapters,
        like: torch.Tensor,
        *,
        is_head: bool = False,
    ) -> None:
        """``parts`` has an entry for each adapter; the weights are kept as ``like`` is. A head is
        the layer that makes the logits.
        """
        super().__init__()
        self.base, self.is_head, self._adapters = base, is_head, adapters
        given = [part for part in parts if part is not None]
        self.in_features, self.out_features = given[0].down.shape[1], given[0].up.shape[0]
        down = torch.cat([part.down for part in given]).to(like)
        up = torch.cat([part.up.t() for part in given]).to(like)
        self.matrices = Matrices(
            down, up, tuple(0 if part is None else part.rank for part in parts)
        )

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
        rows = self._adapters.step.of(len(flat), is_head=self.is_head)
        if rows is not None:
            rows.add(self.matrices, flat, y.view(-1, self.out_features))


def attach(model: Any, adapters: Adapters) -> None:
    """Puts the adapters beside the model's layers, in place.

    Raises:
        LoadError: an adapter changes a layer that computes more than a step's tokens, or whose
          weight is read past it.
    """
    head = model.get_output_embeddings()
    names = dict.fromkeys(name for adapter in adapters.adapters for name in adapter.parts)
    for name in names:
        parent_name, _, child_name = name.rpartition(".")
        parent, base = model.get_submodule(parent_name), model.get_submodule(name)
        if hasattr(parent, "expand_kv") and child_name == "kv_b_proj":
            raise LoadError(
                f"adapters: {name} makes the keys and values of all earlier tokens, whatever "
                "adapter they had: merge that adapter into the weights, or leave this layer out"
            )
        if child_name in READ_BY_PARENT:
            raise LoadError(
                f"adapters: the layer around {name} multiplies its weight itself, without an "
                "adapter: merge that adapter into the weights, or leave this layer out"
            )
        like = torch.empty(0, dtype=model.dtype, device=_device(base, model))
        parts = [adapter.parts.get(name) for adapter in adapters.adapters]
        layer = AdaptedLinear(base, parts, adapters, like, is_head=base is head)
        setattr(parent, child_name, layer)


def _device(layer: Any, model: Any) -> torch.device:
    """The device of a layer; a quantized one may have no tensor called weight."""
    held = getattr(layer, "weight", None)
    if not isinstance(held, torch.Tensor):
        held = next(chain(layer.parameters(), layer.buffers()), model)
    device: torch.device = held.device
    return device


def without_adapters(part: Any) -> Any:
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
