"""The cache behind transformers' own interface, for models that compute attention themselves: a
row's pages are gathered, and its states are a row of their tables.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence as Items
from typing import Any

import torch
from transformers import Cache, EncoderDecoderCache
from transformers.cache_utils import DummyLayer, DynamicLayer, LinearAttentionLayer

from ..sequence.sequence import Sequence
from .layer_shapes import StateShape
from .paged_cache import PagedCache
from .pages import num_pages_of

# Behind a shorter row. A mask that shows it changes the row's logits by more than rounding does, so
# the trial at load refuses the model; beside zeros the change may be too small to see.
_UNSEEN_VALUE = 16.0

TableRows = slice | torch.Tensor  # of a view where they follow each other, else (rows,) int64


class Rows:
    """A row for each of ``sequences``: its tokens at ``positions`` (rows, tokens) attend to at most
    ``length`` columns, ``num_past`` of which come before them. Sequences without any begin. The
    model counts earlier tokens by ``offset``: ``num_past``, or another int or (rows, 1).
    """

    offset: Any

    def __init__(
        self,
        sequences: Items[Sequence],
        positions: torch.Tensor,
        num_past: int,
        length: int,
        page_size: int,
    ) -> None:
        self.positions, self.num_past, self.length = positions, num_past, length
        self.offset = num_past
        num_pages = num_pages_of(length, page_size)
        table = [[*one.pages[:num_pages], *[0] * (num_pages - len(one.pages))] for one in sequences]
        self.table = torch.tensor(table, device=positions.device)  # (rows, pages)
        self.page_size = page_size
        slots = [one.slot for one in sequences]
        self.table_rows: TableRows = slice(slots[0], slots[0] + len(slots))
        if slots != list(range(slots[0], slots[0] + len(slots))):
            self.table_rows = torch.tensor(slots, device=positions.device)
        self._moved: dict[torch.device, Rows] = {positions.device: self}

    def on(self, device: torch.device) -> Rows:
        if device not in self._moved:
            moved = copy.copy(self)
            moved.positions, moved.table = self.positions.to(device), self.table.to(device)
            if isinstance(moved.table_rows, torch.Tensor):
                moved.table_rows = moved.table_rows.to(device)
            self._moved[device] = moved
        return self._moved[device]

    def write(self, stored: torch.Tensor, states: torch.Tensor) -> None:
        """Stores states (rows, tokens, ...) in ``stored`` (pages, page size, ...)."""
        pages = self.table.gather(1, self.positions // self.page_size)
        stored[pages, self.positions % self.page_size] = states

    def read(self, stored: torch.Tensor, behind_row: float = 0) -> torch.Tensor:
        """``stored`` (pages, page size, kv_heads, dim) -> (rows, kv_heads, length, dim), with
        ``behind_row`` in the columns behind a shorter row: no mask hides a NaN. Some models view
        rows and heads as one.
        """
        heads = torch.arange(stored.shape[2], device=stored.device).unsqueeze(1)
        found = stored.movedim(2, 0)[heads, self.table.unsqueeze(1)]  # by heads in one copy
        found = found.contiguous().flatten(2, 3)[:, :, : self.length]
        if len(self.positions) > 1:
            columns = torch.arange(self.length, device=stored.device)
            behind = columns > self.positions[:, -1:]
            found.masked_fill_(behind[:, None, :, None], behind_row)
        return found


class PageLayer(DynamicLayer):
    """Keys and values of one layer, for the ``rows`` of a forward."""

    rows: Rows

    def __init__(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.stored_keys, self.stored_values, self.is_initialized = keys, values, True

    def select(self, rows: Rows) -> None:
        self.rows = rows

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Writes (rows, kv_heads, tokens, dim); returns all columns."""
        rows = self.rows.on(self.stored_keys.device)
        rows.write(self.stored_keys, key_states.transpose(1, 2))
        rows.write(self.stored_values, value_states.transpose(1, 2))
        if not rows.num_past:
            return key_states, value_states
        return rows.read(self.stored_keys), rows.read(self.stored_values, _UNSEEN_VALUE)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.rows.length, 0

    def get_seq_length(self) -> Any:
        return self.rows.offset


class StateLayer(LinearAttentionLayer):
    """Convolution and recurrent states, which transformers updates in place: views of rows of
    tables, or copies that ``finish`` stores.
    """

    def __init__(self, shapes: tuple[StateShape, ...], stored: list[torch.Tensor]) -> None:
        self.shapes, self.stored = shapes, stored
        self._rows: TableRows = slice(0, 0)
        LinearAttentionLayer.__init__(
            self, number_of_states=1 + max(shape.index for shape in shapes)
        )
        self.dtype, self.device = stored[0].dtype, stored[0].device  # type: ignore[assignment]
        for shape in shapes:
            if shape.kind == "conv":
                self.conv_kernel_size[shape.index] = shape.shape[-1]
                self.is_conv_states_initialized[shape.index] = True
            else:
                self.is_recurrent_states_initialized[shape.index] = True

    def select(self, rows: Rows) -> None:
        """Sets the rows of the next forward; states of sequences that begin are 0."""
        self._rows = rows.on(self.stored[0].device).table_rows
        for shape, stored in zip(self.shapes, self.stored, strict=True):
            if not rows.num_past:
                stored[self._rows] = 0
            self._stored(shape)[shape.index] = stored[self._rows]
        self.has_previous_state = dict.fromkeys(self.has_previous_state, bool(rows.num_past))

    def finish(self) -> None:
        for shape, stored in zip(self.shapes, self.stored, strict=True):
            if isinstance(self._rows, torch.Tensor):
                stored[self._rows] = self._stored(shape)[shape.index]

    def _stored(self, shape: StateShape) -> Any:
        return self.conv_states if shape.kind == "conv" else self.recurrent_states


class StateAndPageLayer(StateLayer, PageLayer):  # type: ignore[override, misc]
    """For Falcon-H1 and Zamba."""

    def __init__(
        self, shapes: tuple[StateShape, ...], stored: list[torch.Tensor], *pages: Any
    ) -> None:
        PageLayer.__init__(self, *pages)
        StateLayer.__init__(self, shapes, stored)

    def select(self, rows: Rows) -> None:
        self.rows = rows
        StateLayer.select(self, rows)


class ModelCache(Cache):
    def __init__(self, cache: PagedCache) -> None:
        Cache.__init__(self, layers=[_layer(cache, index) for index in range(len(cache.shapes))])

    def select(self, rows: Rows) -> None:
        for layer in self.layers:
            if isinstance(layer, (PageLayer, StateLayer)):
                layer.select(rows)

    def finish(self) -> None:
        for layer in self.layers:
            if isinstance(layer, StateLayer):
                layer.finish()


def _layer(cache: PagedCache, index: int) -> Any:
    shape = cache.shapes[index]
    pages = cache.keys[index], cache.values[index]
    if shape.states and shape.num_kv_heads:
        return StateAndPageLayer(shape.states, cache.states[index], *pages)
    if shape.states:
        return StateLayer(shape.states, cache.states[index])
    return PageLayer(*pages) if shape.num_kv_heads else DummyLayer()


class CrossLayer(DynamicLayer):
    """Keys and values of sources: rows of tables (rows, kv_heads, longest source, dim)."""

    def __init__(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.stored = keys, values
        self.is_initialized = True
        self.begins, self.length = True, 0
        self._rows: TableRows = slice(0, 0)

    def select(self, rows: Rows, length: int) -> None:
        self.begins, self.length = not rows.num_past, length
        self._rows = rows.on(self.stored[0].device).table_rows
        if not self.begins:
            self.keys, self.values = (one[:, :, :length][self._rows] for one in self.stored)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Stores (rows, kv_heads, source, dim) of sequences that begin."""
        for stored, states in zip(self.stored, (key_states, value_states), strict=True):
            stored[:, :, : states.shape[2]][self._rows] = states
        return key_states, value_states

    def get_seq_length(self) -> int:
        return 0 if self.begins else self.length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length, 0


class CrossCache(EncoderDecoderCache):
    def __init__(self, cache: PagedCache) -> None:
        self.own = [
            PageLayer(keys, values) for keys, values in zip(cache.keys, cache.values, strict=True)
        ]
        self.cross = [CrossLayer(*stored) for stored in cache.states]
        super().__init__(Cache(layers=[*self.own]), Cache(layers=[*self.cross]))

    def select(self, rows: Rows, source_length: int) -> None:
        """Sets the next forward's rows, and how many columns of sources they attend to."""
        for own, cross in zip(self.own, self.cross, strict=True):
            own.select(rows)
            cross.select(rows, source_length)
        self.is_updated = dict.fromkeys(range(len(self.cross)), bool(rows.num_past))
