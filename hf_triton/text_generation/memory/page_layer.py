"""Layers of transformers' own cache interface: a row's pages are gathered, and its states are a row
of their tables.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from typing import Any

import torch
from transformers.cache_utils import CacheLayerMixin

from ..sequence.sequence import Sequence
from .layer_shapes import StateShape
from .pages import num_pages_of

TableRows = slice | torch.Tensor  # of a view where they follow each other, else (rows,) int64


class Rows:
    """The rows of a forward, one for each of ``sequences``: its tokens at ``positions`` (rows,
    tokens), which attend to at most ``length`` columns, ``num_past`` of which come before the
    forward. Without those sequences begin with it.
    """

    def __init__(
        self,
        sequences: Items[Sequence],
        positions: torch.Tensor,
        num_past: int,
        length: int,
        page_size: int,
    ) -> None:
        self.positions, self.num_past, self.length = positions, num_past, length
        num_pages = num_pages_of(length, page_size)
        table = [[*one.pages[:num_pages], *[0] * (num_pages - len(one.pages))] for one in sequences]
        self.table = torch.tensor(table, device=positions.device)  # (rows, pages)
        self.page_size = page_size
        self.table_rows = table_rows([one.slot for one in sequences], positions.device)
        self._moved: dict[torch.device, Rows] = {positions.device: self}

    def on(self, device: torch.device) -> Rows:
        """The rows for layers on another device."""
        if device not in self._moved:
            moved: Rows = object.__new__(Rows)
            moved.__dict__.update(self.__dict__)
            moved.positions, moved.table = self.positions.to(device), self.table.to(device)
            if isinstance(moved.table_rows, torch.Tensor):
                moved.table_rows = moved.table_rows.to(device)
            self._moved[device] = moved
        return self._moved[device]

    def write(self, stored: torch.Tensor, states: torch.Tensor) -> None:
        """Puts states (rows, tokens, ...) at their places of ``stored`` (pages, page size, ...)."""
        pages = self.table.gather(1, self.positions // self.page_size)
        stored[pages, self.positions % self.page_size] = states

    def read(self, stored: torch.Tensor) -> torch.Tensor:
        """``stored`` (pages, page size, ...) up to the longest row, (rows, length, ...). What
        others left behind a shorter row is cleared: no mask hides a NaN.
        """
        found = stored[self.table].flatten(1, 2)[:, : self.length]
        if len(self.positions) > 1:
            columns = torch.arange(self.length, device=stored.device)
            behind = columns > self.positions[:, -1:]
            found.masked_fill_(behind.view(*behind.shape, *[1] * (found.dim() - 2)), 0)
        return found


def table_rows(numbers: list[int], device: torch.device) -> TableRows:
    first, end = numbers[0], numbers[0] + len(numbers)
    if numbers == list(range(first, end)):
        return slice(first, end)
    return torch.tensor(numbers, device=device)


class PageLayer(CacheLayerMixin):
    """Keys and values of one layer (and the keys of its indexer), as transformers sees them during
    one forward, of ``rows``.
    """

    is_sliding = False
    rows: Rows
    max_length = 0

    def __init__(
        self, keys: torch.Tensor, values: torch.Tensor, indexer_keys: torch.Tensor | None = None
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.stored_keys, self.stored_values = keys, values
        self.stored_indexer_keys = indexer_keys
        self.is_initialized = True
        self.columns: torch.Tensor | None = None  # (3, rows, columns) their positions

    def select(self, rows: Rows) -> None:
        self.rows = rows

    def lazy_initialization(self, *args: Any, **kwargs: Any) -> None:
        """Nothing to do: the pages were there before the first token."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Writes (rows, kv_heads, tokens, dim) at the rows' positions; returns all up to the
        longest row.
        """
        rows = self.rows.on(self.stored_keys.device)
        rows.write(self.stored_keys, key_states.transpose(1, 2))
        rows.write(self.stored_values, value_states.transpose(1, 2))
        if not rows.num_past:
            return key_states, value_states
        keys, values = rows.read(self.stored_keys), rows.read(self.stored_values)
        return keys.transpose(1, 2), values.transpose(1, 2)

    def update_indexer(self, indexer_key_states: torch.Tensor) -> torch.Tensor:
        """Writes (rows, tokens, dim) as ``update`` does."""
        assert self.stored_indexer_keys is not None
        rows = self.rows.on(self.stored_indexer_keys.device)
        rows.write(self.stored_indexer_keys, indexer_key_states.to(self.stored_indexer_keys.dtype))
        return rows.read(self.stored_indexer_keys)

    def update_index(self, idx_k: torch.Tensor) -> torch.Tensor:
        """Updates the index in MiniMax M3's layout, (rows, 1, tokens, dim)."""
        return self.update_indexer(idx_k[:, 0]).unsqueeze(1)

    @property
    def indexer_position_ids(self) -> torch.Tensor | None:
        """(3, rows, num_past): the positions of the columns before the forward's tokens, as Qwen 4
        (experimental) keeps them for its three rotary axes.
        """
        rows = self.rows
        if self.columns is not None and rows.num_past:
            return self.columns[:, :, : rows.num_past]
        past = torch.arange(rows.num_past, device=rows.positions.device)
        return past.expand(3, len(rows.positions), -1) if rows.num_past else None

    @indexer_position_ids.setter
    def indexer_position_ids(self, position_ids: torch.Tensor) -> None:
        """A column's position is its number, or one of ``columns``."""

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.rows.length, 0

    def get_seq_length(self) -> int:
        return self.rows.num_past

    def get_max_length(self) -> int:
        return self.max_length


class TableLayer:
    """States of one layer: ``views`` of their tables' rows, or copies that ``finish`` puts back."""

    def __init__(self, shapes: tuple[StateShape, ...], stored: list[torch.Tensor]) -> None:
        self.shapes, self.stored = shapes, stored
        self.views: list[torch.Tensor] = []
        self._rows: TableRows = slice(0, 0)

    def select(self, rows: Rows) -> None:
        """Sets the rows of the next forward; where sequences begin with it, their states are 0."""
        for number, stored in enumerate(self.stored):
            self._rows = rows.on(stored.device).table_rows
            if not rows.num_past:
                stored[self._rows] = 0
            self.views[number : number + 1] = [stored[self._rows]]

    def finish(self) -> None:
        for stored, view in zip(self.stored, self.views, strict=True):
            if isinstance(self._rows, torch.Tensor):
                stored[self._rows.to(stored.device)] = view
