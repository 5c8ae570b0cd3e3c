"""Which adapter computes each row of a forward, and how its change is added.

The adapters' matrices of a layer are concatenated by rank. Rows are multiplied with the columns of
the adapters that they need, the columns of other adapters become zero, and multiplied back: two
matrix products, however many adapters share a step.

What is of other adapters is left out by choosing, never by a product with 0: huge weights overflow,
and infinity times 0 is NaN in rows that have nothing to do with them.

On the CPU a step multiplies the rows and columns alone that it needs (``RowAdapters``). On a GPU
shapes do not depend on the step, so that a CUDA graph can hold them (``DeviceRows``): rows read
their adapters' numbers from the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
import torch.nn.functional as F

# Taking each row's own matrices writes and reads them once more: three times the memory traffic.
_TRAFFIC_OF_GATHERING = 3
# Below, all ranks together are read in less time than the three more kernels take that gathering
# needs: 1,024 ranks of a layer of 4,096 x 4,096 in 16 bits are 16 MiB, 5 us of an H100's memory.
_FEWEST_RANKS_TO_GATHER = 1024


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

    @property
    def size(self) -> tuple[int, int]:
        """The layer's in_features and out_features."""
        return self.down.shape[1], self.up.shape[0]


class Matrices:
    """All adapters' matrices of one layer: ``down`` (ranks, in_features), ``up`` (ranks,
    out_features); ``ranks`` has an entry for each adapter, 0 where it does not change the layer.
    """

    def __init__(self, down: torch.Tensor, up: torch.Tensor, ranks: tuple[int, ...]) -> None:
        self.down, self.up, self.ranks = down, up, ranks
        self.ends = (0, *accumulate(ranks))
        owners = [number for number, rank in enumerate(ranks, 1) for _ in range(rank)]
        self.owners = torch.tensor(owners, dtype=torch.int32, device=down.device)
        # By an adapter's number; 0 is none.
        own = [(0, 0), *zip(self.ends, ranks, strict=False)]
        self.own_columns = torch.tensor(own, dtype=torch.int32, device=down.device)

    @torch.inference_mode()
    def put(self, at: int, part: LowRank | None) -> None:
        """Writes an adapter's change into the columns of the one at ``at``, which have room for it;
        those that are left, or all without a change, become zero.
        """
        columns = slice(self.ends[at], self.ends[at + 1])
        down, up, rank = self.down[columns], self.up[columns], part.rank if part else 0
        if part is not None:
            down[:rank].copy_(part.down)
            up[:rank].copy_(part.up.t())
        down[rank:].zero_()
        up[rank:].zero_()

    @property
    def key(self) -> tuple[object, ...]:
        """Layers with the same one have the same masks."""
        return self.ranks, self.down.device


class RowAdapters:
    """Each row's adapter: its number, from 1 in the model's order, or 0.

    Rows before the first and behind the last that has one are left alone.
    """

    def __init__(self, numbers: Sequence[int]) -> None:
        """At least one number is not 0."""
        found = [number for number in numbers if number]
        self.lowest, self.highest = min(found), max(found)
        self.is_uniform = len(found) == len(numbers) and self.lowest == self.highest
        first = next(row for row, number in enumerate(numbers) if number)
        last = next(row for row in reversed(range(len(numbers))) if numbers[row])
        self.rows = slice(None) if self.is_uniform else slice(first, last + 1)
        self.numbers = torch.tensor(numbers[self.rows])
        self._masks: dict[tuple[object, ...], torch.Tensor] = {}

    def add(self, matrices: Matrices, x: torch.Tensor, y: torch.Tensor) -> None:
        """Adds to ``y`` (rows, out_features) what adapters make of ``x`` (rows, in_features)."""
        columns = slice(matrices.ends[self.lowest - 1], matrices.ends[self.highest])
        if columns.start == columns.stop:
            return
        low = F.linear(x[self.rows], matrices.down[columns])
        if not self.is_uniform:
            low.masked_fill_(self._mask(matrices, columns), 0)
        y[self.rows].addmm_(low, matrices.up[columns])

    def _mask(self, matrices: Matrices, columns: slice) -> torch.Tensor:
        """(rows, columns): where a column is not of the row's own adapter."""
        if matrices.key not in self._masks:
            numbers = self.numbers.unsqueeze(1)
            self._masks[matrices.key] = numbers != matrices.owners[columns]
        return self._masks[matrices.key]


class DeviceRows:
    """Each row's adapter as RowAdapters has it, ``numbers`` (rows,) int32 on the device. What is
    computed has the same shapes whatever the numbers are, and waits for none.

    Made anew for each forward, inside a captured one too: it keeps what it has computed of the
    numbers.
    """

    def __init__(self, numbers: torch.Tensor) -> None:
        self.numbers = numbers
        self._masks: dict[tuple[object, ...], torch.Tensor] = {}
        self._indices: dict[tuple[object, ...], tuple[torch.Tensor, torch.Tensor]] = {}

    def add(self, matrices: Matrices, x: torch.Tensor, y: torch.Tensor) -> None:
        """Adds to ``y`` (rows, out_features) what the adapters make of ``x`` (rows, in_features).

        Takes each row's own matrices instead of all where that reads less: few rows of a model with
        many adapters.
        """
        x = x.to(matrices.down.device)  # a head's comes from another GPU, where layers are spread
        gathered = len(self.numbers) * max(matrices.ranks) * _TRAFFIC_OF_GATHERING
        if max(gathered, _FEWEST_RANKS_TO_GATHER) < len(matrices.down):
            index, is_other = self._own(matrices)
            low = torch.bmm(matrices.down[index], x.unsqueeze(2)).squeeze(2)
            low.masked_fill_(is_other, 0)
            y.unsqueeze(1).baddbmm_(low.unsqueeze(1), matrices.up[index])
        else:
            low = F.linear(x, matrices.down).masked_fill_(self._mask(matrices), 0)
            y.addmm_(low, matrices.up)

    def _mask(self, matrices: Matrices) -> torch.Tensor:
        """(rows, ranks): where a column is not of the row's own adapter."""
        if matrices.key not in self._masks:
            numbers = self.numbers.to(matrices.down.device).unsqueeze(1)
            self._masks[matrices.key] = numbers != matrices.owners
        return self._masks[matrices.key]

    def _own(self, matrices: Matrices) -> tuple[torch.Tensor, torch.Tensor]:
        """Where each row's own matrices are, and which of these are not: (rows, largest rank)."""
        if matrices.key not in self._indices:
            device = matrices.down.device
            first, rank = matrices.own_columns[self.numbers.to(device)].unsqueeze(2).unbind(1)
            offsets = torch.arange(max(matrices.ranks), dtype=torch.int32, device=device)
            index = (first + offsets).clamp_(max=len(matrices.down) - 1)
            self._indices[matrices.key] = index, offsets >= rank
        return self._indices[matrices.key]


@dataclass(frozen=True)
class StepAdapters:
    """What a forward's rows are computed by: all ``num_tokens`` of them, and the ``num_sampled``
    whose logits are wanted, which are all that a model's head sees, and of some runners the last
    layer. None where no row has an adapter.
    """

    num_tokens: int
    num_sampled: int
    tokens: RowAdapters | DeviceRows | None
    sampled: RowAdapters | DeviceRows | None

    def of(self, num_rows: int, *, is_head: bool) -> RowAdapters | DeviceRows | None:
        """Those of as many rows as a layer is given. A step that wants as many logits as it has
        tokens may want one token's twice, so there the head alone is given the sampled rows.
        """
        if num_rows == self.num_sampled and (is_head or num_rows != self.num_tokens):
            return self.sampled
        return self.tokens if num_rows == self.num_tokens else None
