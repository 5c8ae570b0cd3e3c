"""The preallocated slots behind transformers' own cache interface."""

from __future__ import annotations

from typing import Any

import torch
from transformers import Cache, DynamicCache
from transformers.cache_utils import DummyLayer, LinearAttentionLayer

from .compressed_layer import CompressedLayer
from .kv_cache import KVCache
from .layer_shapes import StateShape, own_cache
from .slot_layer import SlotLayer


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
        Cache.__init__(self, layers=[_layer(cache, index) for index in range(len(cache.shapes))])

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
    if any(state.kind == "own" for state in shape.states):
        return DummyLayer()  # the runner hands them on
    if any(state.per for state in shape.states):
        return CompressedLayer(shape.states, cache.states[index], cache.keys[index])
    keys = cache.keys[index], cache.values[index], cache.indexer_keys[index]
    if shape.states and shape.num_kv_heads:
        return StateAndSlotLayer(shape.states, cache.states[index], *keys)
    if shape.states:
        return StateLayer(shape.states, cache.states[index])
    return SlotLayer(*keys) if shape.num_kv_heads else DummyLayer()
