"""Linear layers with LoRA adapters: each token gets its own adapter's low-rank change.

Steps without adapters compute the base layers alone. Knows no steps: rows.py has which adapter a
row has.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, chain, count
from typing import Any

import torch
from torch import nn

from hf_triton.runtime.devices.prepacked_linear import READ_BY_PARENT
from hf_triton.runtime.errors import LoadError

from .rows import LowRank, Matrices, RowAdapters, StepAdapters

Linear = Callable[[torch.Tensor], torch.Tensor]
_keys = count(1)


@dataclass(frozen=True)
class Adapter:
    """An adapter's name, and its low-rank changes by the names of the model's modules. ``key`` is
    its own among all that this process has read: another one of the same name may follow it.
    """

    name: str
    parts: dict[str, LowRank]
    key: int = field(default_factory=partial(next, _keys))


@dataclass(frozen=True)
class Change:
    """What the engine's thread takes up between two steps: the adapters that requests may name
    from then on, all that are computed, and matrices of layers that get others. ``taken``: it has.
    """

    current: Sequence[Adapter]
    computed: Sequence[Adapter]
    matrices: Mapping[AdaptedLinear, Matrices | None]
    taken: threading.Event = field(default_factory=threading.Event)


class Adapters(Collection[str]):
    """The adapters of a model: a collection of the names that requests may give. Those that were
    removed are computed while sequences need them. ``step`` is about the forward at hand, None
    where it has none.
    """

    def __init__(
        self, adapters: Sequence[Adapter], sizes: Mapping[str, tuple[int, int]] | None = None
    ) -> None:
        """``sizes`` has in_features and out_features of layers that later adapters may change."""
        given = chain.from_iterable(adapter.parts.items() for adapter in adapters)
        self.sizes = {**(sizes or {}), **{name: part.size for name, part in given}}
        self.layers: dict[str, AdaptedLinear] = {}
        self.step: StepAdapters | None = None
        self._name(adapters, adapters)

    def __contains__(self, name: object) -> bool:
        return name in self.current

    def __iter__(self) -> Iterator[str]:
        return iter(self.current)

    def __len__(self) -> int:
        return len(self.current)

    def number(self, key: int) -> int:
        """What stands for an adapter in a row: its number from 1, or 0 for none."""
        return self._numbers[key]

    @property
    def removed(self) -> set[int]:
        """The keys of those that are computed though no request may name them any more."""
        named = {one.key for one in self.current.values()}
        return {one.key for one in self.computed} - named

    def change_to(self, adapters: Sequence[Adapter], used: Collection[int]) -> Change:
        """What makes these the adapters; of removed ones those stay that are ``used``. Current ones
        stay too: until the change is taken up, sequences begin with them.

        Raises:
            LoadError: one changes a layer that had to be known when the model was loaded.
        """
        for adapter in adapters:
            for name in adapter.parts.keys() - self.layers.keys():
                raise LoadError(
                    f"adapter {adapter.name}: it changes {name}, which a running model can't take: "
                    "load the model anew"
                )
        removed = self.removed
        stay = (one for one in self.computed if one.key not in removed or one.key in used)
        computed = tuple({one.key: one for one in (*adapters, *stay)}.values())
        matrices = {
            layer: layer.matrices_of([one.parts.get(name) for one in computed])
            for name, layer in self.layers.items()
        }
        return Change(adapters, computed, matrices)

    def take_up(self, change: Change) -> None:
        """Serves what the change says; called between two forwards."""
        self._name(change.current, change.computed)
        for layer, matrices in change.matrices.items():
            layer.matrices = matrices
        change.taken.set()

    def _name(self, current: Sequence[Adapter], computed: Sequence[Adapter]) -> None:
        self.computed = computed
        self.current = {adapter.name: adapter for adapter in current}
        self._numbers = {0: 0, **{one.key: number for number, one in enumerate(computed, 1)}}

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
        tokens, rows = RowAdapters(numbers), RowAdapters(sampled)
        return self.applied(StepAdapters(len(numbers), len(sampled), tokens, rows))


class AdaptedLinear(nn.Module):
    """``base`` and the adapters' changes of it."""

    is_one_layer = True  # to who reads the model: base alone is not what it computes

    def __init__(
        self,
        base: nn.Module,
        size: tuple[int, int],
        adapters: Adapters,
        like: torch.Tensor,
        *,
        is_head: bool = False,
    ) -> None:
        """``size`` is in_features and out_features; the weights are kept as ``like`` is. A head is
        the layer that makes the logits.
        """
        super().__init__()
        self.base, self.is_head, self._adapters, self._like = base, is_head, adapters, like
        self.in_features, self.out_features = size
        self.matrices: Matrices | None = None  # of no adapter yet

    def matrices_of(self, parts: Sequence[LowRank | None]) -> Matrices | None:
        """``parts``, an entry for each adapter, beside each other; None where there is none."""
        given = [part for part in parts if part is not None]
        if not given:
            return None
        down = torch.cat([part.down for part in given]).to(self._like)
        up = torch.cat([part.up.t() for part in given]).to(self._like)
        return Matrices(down, up, tuple(0 if part is None else part.rank for part in parts))

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
        if self._adapters.step is None or self.matrices is None:
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
    changed = {name for adapter in adapters.computed for name in adapter.parts}
    for name, size in adapters.sizes.items():
        parent_name, _, child_name = name.rpartition(".")
        parent, base = model.get_submodule(parent_name), model.get_submodule(name)
        why = _why_not(parent, name, child_name)
        if why and name in changed:
            raise LoadError(
                f"adapters: {why}: merge that adapter into the weights, or leave this layer out"
            )
        if not why:
            like = torch.empty(0, dtype=model.dtype, device=_device(base, model))
            layer = AdaptedLinear(base, size, adapters, like, is_head=base is head)
            adapters.layers[name] = layer
            setattr(parent, child_name, layer)
    adapters.take_up(adapters.change_to(adapters.computed, ()))


def _why_not(parent: Any, name: str, child_name: str) -> str:
    """Why no adapter can change a layer; empty where one can."""
    if hasattr(parent, "expand_kv") and child_name == "kv_b_proj":
        return f"{name} makes the keys and values of all earlier tokens, whatever adapter they had"
    if child_name in READ_BY_PARENT:
        return f"the layer around {name} multiplies its weight itself, without an adapter"
    return ""


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
