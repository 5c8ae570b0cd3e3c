"""The cache behind transformers' own interface, for models that compute attention themselves."""

from __future__ import annotations

from typing import Any

import torch
from transformers import Cache, DynamicCache, EncoderDecoderCache
from transformers.cache_utils import CacheLayerMixin, DummyLayer, LinearAttentionLayer

from .compressed_layer import CompressedLayer
from .layer_shapes import StateShape, own_cache
from .page_layer import PageLayer, Rows, TableLayer, TableRows
from .paged_cache import PagedCache


class StateLayer(TableLayer, LinearAttentionLayer):
    """Convolution and recurrent states of one layer, which transformers updates in place."""

    def __init__(self, shapes: tuple[StateShape, ...], stored: list[torch.Tensor]) -> None:
        TableLayer.__init__(self, shapes, stored)
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
        TableLayer.select(self, rows)
        for shape, view in zip(self.shapes, self.views, strict=True):
            kept = self.conv_states if shape.kind == "conv" else self.recurrent_states
            kept[shape.index] = view
        self.has_previous_state = dict.fromkeys(self.has_previous_state, bool(rows.num_past))


class StateAndPageLayer(StateLayer, PageLayer):  # type: ignore[override]
    """A layer that keeps both (Falcon-H1, Zamba)."""

    def __init__(
        self, shapes: tuple[StateShape, ...], stored: list[torch.Tensor], *keys: torch.Tensor
    ) -> None:
        PageLayer.__init__(self, *keys)
        StateLayer.__init__(self, shapes, stored)

    def select(self, rows: Rows) -> None:
        self.rows = rows
        StateLayer.select(self, rows)


class ModelCache(Cache):
    """A ``PagedCache``, layer by layer."""

    def __init__(self, cache: PagedCache) -> None:
        Cache.__init__(self, layers=[_layer(cache, index) for index in range(len(cache.shapes))])
        for layer in self.layers:
            if isinstance(layer, PageLayer):
                layer.max_length = cache.size.max_model_len

    def select(self, rows: Rows) -> None:
        """Sets the rows of the next forward."""
        for layer in self.layers:
            if isinstance(layer, (PageLayer, TableLayer)):
                layer.select(rows)

    def finish(self) -> None:
        """Puts the states of the forward back."""
        for layer in self.layers:
            if isinstance(layer, TableLayer):
                layer.finish()


class LinearModelCache(ModelCache):
    """The same as MiniMax wants it: it asks the cache itself for states."""

    def __len__(self) -> int:
        return len(self.layers)

    def get_linear_cache(self, layer_idx: int) -> torch.Tensor | None:
        """(rows, heads, dim, dim), or None where sequences begin."""
        return self.get_recurrent_state(layer_idx)

    def set_linear_cache(self, layer_idx: int, linear_cache: torch.Tensor) -> None:
        self.update_recurrent_state(linear_cache, layer_idx)


def model_cache(model: Any, cache: PagedCache) -> ModelCache:
    """The cache as the model wants it."""
    own = type(own_cache(model))
    if own is DynamicCache:
        return ModelCache(cache)
    kind: type[ModelCache] = type("LinearModelCache", (LinearModelCache, own), {})
    return kind(cache)


def _layer(cache: PagedCache, index: int) -> Any:
    shape = cache.shapes[index]
    if any(state.kind == "own" for state in shape.states):
        return DummyLayer()  # the runner hands them on
    if any(state.per for state in shape.states):
        return CompressedLayer(shape.states, cache.states[index], cache.keys[index])
    keys = cache.keys[index], cache.values[index], cache.indexer_keys[index]
    if shape.states and shape.num_kv_heads:
        return StateAndPageLayer(shape.states, cache.states[index], *keys)
    if shape.states:
        return StateLayer(shape.states, cache.states[index])
    return PageLayer(*keys) if shape.num_kv_heads else DummyLayer()


class OwnLayer(PageLayer):
    """Keys and values of what the decoder of an encoder-decoder wrote; ``offset`` counts the tokens
    before a forward's: an int, or (rows, 1).
    """

    offset: Any = 0

    def get_seq_length(self) -> Any:
        return self.offset


class CrossLayer(CacheLayerMixin):
    """Keys and values of what the encoder read, which transformers reads as ``keys`` and
    ``values``: rows of tables (rows, kv_heads, longest source, dim).
    """

    is_sliding = False

    def __init__(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.stored = keys, values
        self.is_initialized = True
        self.begins, self.length = True, 0
        self._rows: TableRows = slice(0, 0)

    def lazy_initialization(self, *args: Any, **kwargs: Any) -> None:
        """Nothing to do: the tables were there before the first token."""

    def select(self, rows: Rows, length: int) -> None:
        """Sets what the next forward reads."""
        self.begins, self.length = not rows.num_past, length
        self._rows = rows.on(self.stored[0].device).table_rows
        if not self.begins:
            self.keys, self.values = (one[:, :, :length][self._rows] for one in self.stored)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Writes (rows, kv_heads, source, dim), of those that begin."""
        for stored, states in zip(self.stored, (key_states, value_states), strict=True):
            stored[:, :, : states.shape[2]][self._rows] = states
        return key_states, value_states

    def get_seq_length(self) -> int:
        return 0 if self.begins else self.length

    def get_max_length(self) -> int:
        return self.stored[0].shape[2]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length, 0


class CrossCache(EncoderDecoderCache):
    """A ``PagedCache`` of an encoder-decoder, layer by layer."""

    def __init__(self, cache: PagedCache) -> None:
        self.own = [
            OwnLayer(keys, values) for keys, values in zip(cache.keys, cache.values, strict=True)
        ]
        self.cross = [CrossLayer(*stored) for stored in cache.states]
        super().__init__(Cache(layers=[*self.own]), Cache(layers=[*self.cross]))

    def select(self, rows: Rows, offset: int | torch.Tensor, source_length: int) -> None:
        """Sets the rows of the next forward, and how many columns of sources it attends to."""
        for own, cross in zip(self.own, self.cross, strict=True):
            own.select(rows)
            own.offset = offset
            cross.select(rows, source_length)
        self.is_updated = dict.fromkeys(range(len(self.cross)), bool(rows.num_past))
