"""Linear layers with LoRA adapters: each token gets its own adapter's low-rank change.

The adapters' matrices of a layer are concatenated by rank. Rows are multiplied with the columns of
the adapters that they need, the columns of other adapters become zero, and multiplied back: two
matrix products, however many adapters share a step. Steps without adapters compute the base layers
alone.

What is of other adapters is left out by choosing, never by a product with 0: huge weights overflow,
and infinity times 0 is NaN in rows that have nothing to do with them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, chain, count
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from hf_triton.runtime.devices.device import to_device
from hf_triton.runtime.devices.prepacked_linear import is_read_by
from hf_triton.runtime.errors import LoadError

Linear = Callable[[torch.Tensor], torch.Tensor]
_keys = count(1)


@dataclass(frozen=True)
class LowRank:
    """``x @ down.T @ up.T``: ``down`` is (rank, in_features), ``up`` (out_features, rank), times
    the adapter's scaling.
    """

    down: torch.Tensor
    up: torch.Tensor

    @property
    def rank(self) -> int:
        return self.down.shape[0]

    @property
    def size(self) -> tuple[int, int]:
        """in_features and out_features."""
        return self.down.shape[1], self.up.shape[0]


class Matrices:
    """All adapters' matrices of a layer: ``down`` (ranks, in_features), ``up`` (ranks,
    out_features); ``ranks`` has an entry for each adapter, 0 where it leaves the layer alone.
    """

    def __init__(self, down: torch.Tensor, up: torch.Tensor, ranks: tuple[int, ...]) -> None:
        self.down, self.up, self.ranks = down, up, ranks
        self.ends = (0, *accumulate(ranks))
        owners = [number for number, rank in enumerate(ranks, 1) for _ in range(rank)]
        self.owners = torch.tensor(owners, dtype=torch.int32, device=down.device)


class RowAdapters:
    """Each row's adapter: its number from 1, or 0. Only rows and columns between the first and last
    that are needed are computed.
    """

    def __init__(self, numbers: Sequence[int], device: torch.device) -> None:
        """At least one row has an adapter."""
        rows = [row for row, number in enumerate(numbers) if number]
        self._rows = slice(rows[0], rows[-1] + 1)
        used = numbers[self._rows]
        self._numbers = to_device(torch.tensor(used, dtype=torch.int32), device)
        self._lowest, self._highest = min(numbers[row] for row in rows), max(used)
        self._is_uniform = self._lowest == self._highest and len(rows) == len(used)
        self._masks: dict[tuple[object, ...], torch.Tensor] = {}

    def add(self, matrices: Matrices, x: torch.Tensor, y: torch.Tensor) -> None:
        """Adds to ``y`` (rows, out_features) what adapters make of ``x`` (rows, in_features)."""
        columns = slice(matrices.ends[self._lowest - 1], matrices.ends[self._highest])
        if columns.start == columns.stop:
            return
        # A head's input comes from another GPU, where layers are spread.
        low = F.linear(x[self._rows].to(matrices.down.device), matrices.down[columns])
        if not self._is_uniform:
            low.masked_fill_(self._mask(matrices, columns), 0)
        y[self._rows].addmm_(low, matrices.up[columns])

    def _mask(self, matrices: Matrices, columns: slice) -> torch.Tensor:
        """(rows, columns): where a column belongs to another adapter."""
        key = matrices.ranks, matrices.down.device
        if key not in self._masks:
            numbers = self._numbers.to(matrices.down.device).unsqueeze(1)
            self._masks[key] = numbers != matrices.owners[columns]
        return self._masks[key]


@dataclass(frozen=True)
class StepAdapters:
    """Adapters of all ``num_tokens`` rows of a forward, and of the ``num_sampled`` rows of the
    head, and of some runners' last layer. None where no row has one.
    """

    num_tokens: int
    num_sampled: int
    tokens: RowAdapters | None
    sampled: RowAdapters | None

    def of(self, num_rows: int, *, is_head: bool) -> RowAdapters | None:
        """The adapters of a layer's ``num_rows`` rows: of all tokens, or of the sampled ones. If a
        step samples as many rows as it has tokens, only the head gets those of the sampled.
        """
        if num_rows == self.num_sampled and (is_head or num_rows != self.num_tokens):
            return self.sampled
        return self.tokens if num_rows == self.num_tokens else None


@dataclass(frozen=True)
class Adapter:
    """``parts`` are changes by module name. ``key`` is unique in this process, a name is not."""

    name: str
    parts: dict[str, LowRank]
    key: int = field(default_factory=partial(next, _keys))


class Adapters(Mapping[str, int]):
    """A model's adapters, the keys of those that requests may name. Removed ones are computed while
    sequences need them. ``step`` is that of the forward at hand.
    """

    def __init__(
        self, adapters: Sequence[Adapter], sizes: Mapping[str, tuple[int, int]] | None = None
    ) -> None:
        """``sizes``: in_features and out_features of layers that later adapters may change."""
        given = chain.from_iterable(adapter.parts.items() for adapter in adapters)
        self.sizes = {**(sizes or {}), **{name: part.size for name, part in given}}
        self.layers: dict[str, AdaptedLinear] = {}
        self.step: StepAdapters | None = None
        self._name(adapters, adapters)

    def __getitem__(self, name: str) -> int:
        return self.current[name].key

    def __iter__(self) -> Iterator[str]:
        return iter(self.current)

    def __len__(self) -> int:
        return len(self.current)

    @property
    def removed(self) -> set[int]:
        """The keys of adapters that are computed and can't be named any more."""
        named = {one.key for one in self.current.values()}
        return {one.key for one in self.computed} - named

    def change_to(self, adapters: Sequence[Adapter], used: Collection[int]) -> Callable[[], None]:
        """Prepares a change to these adapters, which the engine makes between two steps by calling
        what is returned. Removed ones that are ``used`` stay, and current ones, with which
        sequences begin until then. Raises LoadError where one changes a layer that had to be known
        at load.
        """
        for adapter in adapters:
            for name in adapter.parts.keys() - self.layers.keys():
                raise LoadError(
                    f"adapter {adapter.name}: it changes {name}, which a running model can't take: "
                    "reload the model"
                )
        removed = self.removed
        stay = (one for one in self.computed if one.key not in removed or one.key in used)
        computed = tuple({one.key: one for one in (*adapters, *stay)}.values())
        matrices = {
            layer: layer.matrices_of([one.parts.get(name) for one in computed])
            for name, layer in self.layers.items()
        }

        def change() -> None:
            self._name(adapters, computed)
            for layer, own in matrices.items():
                layer.matrices = own

        return change

    def _name(self, current: Sequence[Adapter], computed: Sequence[Adapter]) -> None:
        self.computed = computed
        self.current = {adapter.name: adapter for adapter in current}
        self.numbers = {0: 0, **{one.key: number for number, one in enumerate(computed, 1)}}


class AdaptedLinear(nn.Module):
    """``base`` and the adapters' changes of it."""

    is_one_layer = True  # for readers of the model: base alone is not what it computes

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
        """Concatenates ``parts``, an entry for each adapter; None if all are None."""
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
        why = _unsupported_reason(parent, name, child_name)
        if why and name in changed:
            raise LoadError(
                f"adapters: {why}: merge that adapter into the weights, or leave this layer out"
            )
        if not why:
            held = next(chain(base.parameters(), base.buffers()), model)
            like = torch.empty(0, dtype=model.dtype, device=held.device)
            layer = AdaptedLinear(base, size, adapters, like, is_head=base is head)
            adapters.layers[name] = layer
            setattr(parent, child_name, layer)
    adapters.change_to(adapters.computed, ())()


def _unsupported_reason(parent: Any, name: str, child_name: str) -> str:
    if hasattr(parent, "expand_kv") and child_name == "kv_b_proj":
        return f"{name} computes the keys and values of all earlier tokens, of other adapters too"
    if is_read_by(parent, child_name):
        return f"the layer around {name} multiplies its weight itself, without an adapter"
    return ""


def without_adapters(part: Any) -> Any:
    return part.base if isinstance(part, AdaptedLinear) else part


def with_adapters(linear: Linear, parts: Sequence[Any]) -> Linear:
    """Adds the adapters of ``parts`` to ``linear``, which computes their base layers as one."""
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
