"""The preallocated slots behind transformers' own cache interface."""

from __future__ import annotations

from typing import Any

import torch
from transformers import Cache, DynamicCache
from transformers.cache_utils import CacheLayerMixin, DummyLayer, LinearAttentionLayer

from ..kv.kv_cache import KVCache
from ..kv.layer_shapes import StateShape, own_cache


class SlotLayer(CacheLayerMixin):
    """Keys and values of one layer (and the keys of its indexer), as transformers sees them during
    one forward.
    """

    is_sliding = False

    def __init__(
        self, keys: torch.Tensor, values: torch.Tensor, indexer_keys: torch.Tensor
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.stored_keys, self.stored_values = keys, values
        self.stored_indexer_keys = indexer_keys
        self.is_initialized = True
        self.rows: slice = slice(0, 0)
        self.positions = torch.empty(0)
        self.num_past = 0
        self.length = 0

    def lazy_initialization(self, *args: Any, **kwargs: Any) -> None:
        """Nothing to do: the slots were there before the first token."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Writes (rows, kv_heads, tokens, dim) at the rows' positions; returns views up to the
        longest row.
        """
        keys, values = self.stored_keys[self.rows], self.stored_values[self.rows]
        rows, positions = self._places(keys.device)
        keys[rows, :, positions] = key_states.transpose(1, 2)
        values[rows, :, positions] = value_states.transpose(1, 2)
        return keys[:, :, : self.length], values[:, :, : self.length]

    def update_indexer(self, indexer_key_states: torch.Tensor) -> torch.Tensor:
        """Writes (rows, tokens, dim) as ``update`` does."""
        keys = self.stored_indexer_keys[self.rows]
        keys[self._places(keys.device)] = indexer_key_states
        return keys[:, : self.length]

    def update_index(self, idx_k: torch.Tensor) -> torch.Tensor:
        """The same in MiniMax M3's layout, (rows, 1, tokens, dim)."""
        return self.update_indexer(idx_k[:, 0]).unsqueeze(1)

    @property
    def indexer_position_ids(self) -> torch.Tensor | None:
        """(3, rows, num_past): the positions of the columns before the forward's tokens, as Qwen 4
        (experimental) keeps them for its three rotary axes.
        """
        past = torch.arange(self.num_past, device=self.positions.device)
        return past.expand(3, len(self.positions), -1) if self.num_past else None

    @indexer_position_ids.setter
    def indexer_position_ids(self, position_ids: torch.Tensor) -> None:
        """A column's position is its number."""

    def _places(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Where the forward's tokens go: rows (rows, 1), positions (rows, tokens)."""
        positions = self.positions.to(device)
        return torch.arange(len(positions), device=device).unsqueeze(1), positions

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length, 0

    def get_seq_length(self) -> int:
        return self.num_past

    def get_max_length(self) -> int:
        return self.stored_keys.shape[2]


class StateLayer(LinearAttentionLayer):
    """Convolution and recurrent states of one layer: views of slots, which transformers updates in
    place.
    """

    def __init__(self, shapes: tuple[StateShape, ...], stored: list[torch.Tensor]) -> None:
        super().__init__(number_of_states=1 + max(shape.index for shape in shapes))
        self.stored_states = list(zip(shapes, stored, strict=True))
        self.dtype, self.device = stored[0].dtype, stored[0].device  # type: ignore[assignment]
        for shape in shapes:
            if shape.kind == "conv":
                self.conv_kernel_size[shape.index] = shape.shape[-1]
                self.is_conv_states_initialized[shape.index] = True
            else:
                self.is_recurrent_states_initialized[shape.index] = True

    def select_states(self, rows: slice, *, begin: bool) -> None:
        """Sets the slots of the next forward; where sequences begin with it, their states are 0."""
        for shape, stored in self.stored_states:
            views = self.conv_states if shape.kind == "conv" else self.recurrent_states
            views[shape.index] = stored[rows]
            if begin:
                stored[rows].zero_()
        self.has_previous_state = dict.fromkeys(self.has_previous_state, not begin)


class StateAndSlotLayer(StateLayer, SlotLayer):  # type: ignore[override]
    """A layer that keeps both (Falcon-H1, Zamba)."""

    def __init__(
        self, shapes: tuple[StateShape, ...], stored: list[torch.Tensor], *keys: torch.Tensor
    ) -> None:
        SlotLayer.__init__(self, *keys)
        StateLayer.__init__(self, shapes, stored)


class SlotCache(Cache):
    """The slots, layer by layer."""

    def __init__(self, cache: KVCache) -> None:
        layers = [_layer(cache, index) for index in range(len(cache.shapes))]
        Cache.__init__(self, layers=layers)

    def select(self, rows: slice, positions: torch.Tensor, num_past: int, length: int) -> None:
        """Sets the slots of the next forward, the positions of its tokens, and how many columns
        they attend to. Without ``num_past``, sequences begin with it.
        """
        for layer in self.layers:
            if isinstance(layer, SlotLayer):
                layer.rows, layer.positions = rows, positions
                layer.num_past, layer.length = num_past, length
            if isinstance(layer, StateLayer):
                layer.select_states(rows, begin=not num_past)


class LinearSlotCache(SlotCache):
    """The slots as MiniMax wants them: it asks the cache itself for states."""

    def __len__(self) -> int:
        return len(self.layers)

    def get_linear_cache(self, layer_idx: int) -> torch.Tensor | None:
        """(rows, heads, dim, dim), or None where sequences begin."""
        return self.get_recurrent_state(layer_idx)

    def set_linear_cache(self, layer_idx: int, linear_cache: torch.Tensor) -> None:
        self.update_recurrent_state(linear_cache, layer_idx)


def slot_cache(model: Any, cache: KVCache) -> SlotCache:
    """The slots as the model wants them."""
    own = type(own_cache(model))
    if own is DynamicCache:
        return SlotCache(cache)
    kind: type[SlotCache] = type("LinearSlotCache", (LinearSlotCache, own), {})
    return kind(cache)


def _layer(cache: KVCache, index: int) -> Any:
    shape = cache.shapes[index]
    keys = cache.keys[index], cache.values[index], cache.indexer_keys[index]
    if shape.states and shape.num_kv_heads:
        return StateAndSlotLayer(shape.states, cache.states[index], *keys)
    if shape.states:
        return StateLayer(shape.states, cache.states[index])
    return SlotLayer(*keys) if shape.num_kv_heads else DummyLayer()
