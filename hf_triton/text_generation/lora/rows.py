"""Which adapter computes each row of a forward, and how its change is added.

The adapters' matrices of a layer are concatenated by rank. Rows are multiplied with the columns of
the adapters that they need, the columns of other adapters become zero, and multiplied back: two
matrix products, however many adapters share a step.

What is of other adapters is left out by choosing, never by a product with 0: huge weights overflow,
and infinity times 0 is NaN in rows that have nothing to do with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
import torch.nn.functional as F

from hf_triton.runtime.devices.device import to_device


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

    @property
    def key(self) -> tuple[object, ...]:
        """Layers with the same one have the same masks."""
        return self.ranks, self.down.device


class RowAdapters:
    """The adapter of each row, ``numbers`` (rows,): from 1 in the model's order, or 0.

    What is computed has the same shapes whatever the numbers are. Of numbers that the host knows
    (``of``), only the rows from the first to the last that has an adapter are computed, by the
    columns of the adapters between the lowest and the highest number.
    """

    def __init__(self, numbers: torch.Tensor) -> None:
        self._numbers, self._rows = numbers, slice(None)
        self._lowest, self._highest = 1, 0  # a highest of 0 stands for all
        self._is_uniform = False
        self._masks: dict[tuple[object, ...], torch.Tensor] = {}

    @classmethod
    def of(cls, numbers: Sequence[int], device: torch.device) -> RowAdapters | None:
        """None where no row has an adapter."""
        rows = [row for row, number in enumerate(numbers) if number]
        if not rows:
            return None
        used = slice(rows[0], rows[-1] + 1)
        found = cls(to_device(torch.tensor(numbers[used], dtype=torch.int32), device))
        found._rows = used
        found._lowest = min(numbers[row] for row in rows)
        found._highest = max(numbers[used])
        found._is_uniform = found._lowest == found._highest and len(rows) == len(numbers[used])
        return found

    def add(self, matrices: Matrices, x: torch.Tensor, y: torch.Tensor) -> None:
        """Adds to ``y`` (rows, out_features) what adapters make of ``x`` (rows, in_features)."""
        last = self._highest or len(matrices.ranks)
        columns = slice(matrices.ends[self._lowest - 1], matrices.ends[last])
        if columns.start == columns.stop:
            return
        # A head's input comes from another GPU, where layers are spread.
        low = F.linear(x[self._rows].to(matrices.down.device), matrices.down[columns])
        if not self._is_uniform:
            low.masked_fill_(self._mask(matrices, columns), 0)
        y[self._rows].addmm_(low, matrices.up[columns])

    def _mask(self, matrices: Matrices, columns: slice) -> torch.Tensor:
        """(rows, columns): where a column is not of the row's own adapter."""
        if matrices.key not in self._masks:
            numbers = self._numbers.to(matrices.down.device).unsqueeze(1)
            self._masks[matrices.key] = numbers != matrices.owners[columns]
        return self._masks[matrices.key]


@dataclass(frozen=True)
class StepAdapters:
    """What a forward's rows are computed by: all ``num_tokens`` of them, and the ``num_sampled``
    whose logits are wanted, which are all that a model's head sees, and of some runners the last
    layer. None where no row has an adapter.
    """

    num_tokens: int
    num_sampled: int
    tokens: RowAdapters | None
    sampled: RowAdapters | None

    def of(self, num_rows: int, *, is_head: bool) -> RowAdapters | None:
        """Those of as many rows as a layer is given. A step that wants as many logits as it has
        tokens may want one token's twice, so there the head alone is given the sampled rows.
        """
        if num_rows == self.num_sampled and (is_head or num_rows != self.num_tokens):
            return self.sampled
        return self.tokens if num_rows == self.num_tokens else None
