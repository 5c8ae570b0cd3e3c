"""The slots of an encoder-decoder behind transformers' own cache interface: keys and values of what
the decoder wrote, and those of what the encoder read.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import Cache, EncoderDecoderCache
from transformers.cache_utils import CacheLayerMixin

from .kv_cache import KVCache

Rows = slice | torch.Tensor  # slots: of a view, or numbers (rows,) int64


class _Layer(CacheLayerMixin):
    """What both kinds of layer know of the next forward; its ``rows`` begin where ``begins``."""

    is_sliding = False

    def __init__(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.stored_keys, self.stored_values = keys, values
        self.is_initialized = True
        self.rows: Rows = slice(0, 0)
        self.begins, self.length = True, 0

    def lazy_initialization(self, *args: Any, **kwargs: Any) -> None:
        """Nothing to do: the slots were there before the first token."""

    def _of_rows(self) -> tuple[torch.Tensor, torch.Tensor]:
        rows = self.rows
        rows = rows if isinstance(rows, slice) else rows.to(self.stored_keys.device)
        return self.stored_keys[rows], self.stored_values[rows]

    def get_max_length(self) -> int:
        return self.stored_keys.shape[2]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length, 0


class OwnLayer(_Layer):
    """Keys and values of what the decoder wrote. ``places``: the rows (rows, 1) and the columns
    (rows, tokens) of the forward's tokens; ``offset`` counts those before them: an int, or (rows,
    1).
    """

    places: tuple[torch.Tensor, torch.Tensor]
    offset: Any = 0

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Writes (rows, kv_heads, tokens, dim); returns all up to the longest row."""
        if isinstance(self.rows, slice) and isinstance(self.offset, int):
            self.stored_keys[self.rows, :, self.offset : self.length] = key_states
            self.stored_values[self.rows, :, self.offset : self.length] = value_states
        else:
            device = self.stored_keys.device
            rows, columns = (numbers.to(device) for numbers in self.places)
            self.stored_keys[rows, :, columns] = key_states.transpose(1, 2)
            self.stored_values[rows, :, columns] = value_states.transpose(1, 2)
        if self.begins:
            return key_states, value_states
        keys, values = self._of_rows()
        return keys[:, :, : self.length], values[:, :, : self.length]

    def get_seq_length(self) -> Any:
        return self.offset


class CrossLayer(_Layer):
    """Keys and values of what the encoder read, which transformers reads as ``keys`` and
    ``values``.
    """

    def select(self) -> None:
        """Sets what the next forward reads."""
        if not self.begins:
            keys, values = self._of_rows()
            self.keys, self.values = keys[:, :, : self.length], values[:, :, : self.length]

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Writes (rows, kv_heads, source, dim), of those that begin."""
        rows = self.rows if isinstance(self.rows, slice) else self.rows.to(key_states.device)
        num_tokens = key_states.shape[2]
        self.stored_keys[rows, :, :num_tokens] = key_states
        self.stored_values[rows, :, :num_tokens] = value_states
        return key_states, value_states

    def get_seq_length(self) -> int:
        return 0 if self.begins else self.length


class CrossSlotCache(EncoderDecoderCache):
    """The slots of both kinds, layer by layer."""

    def __init__(self, cache: KVCache) -> None:
        self.own = [OwnLayer(*both) for both in zip(cache.keys, cache.values, strict=True)]
        self.cross = [CrossLayer(*stored) for stored in cache.states]
        super().__init__(Cache(layers=[*self.own]), Cache(layers=[*self.cross]))

    def select(
        self,
        rows: Rows,
        positions: torch.Tensor,
        offset: int | torch.Tensor,
        length: int,
        source_length: int,
    ) -> None:
        """Sets the slots of the next forward, where its tokens go, and how many columns of both
        kinds it attends to. Without an ``offset``, sequences begin with it.
        """
        begins = isinstance(offset, int) and not offset
        numbers = (
            torch.arange(rows.start, rows.stop, device=positions.device)
            if isinstance(rows, slice)
            else rows
        )
        places = numbers[:, None], positions
        for own, cross in zip(self.own, self.cross, strict=True):
            own.rows = cross.rows = rows
            own.begins = cross.begins = begins
            own.places, own.offset, own.length = places, offset, length
            cross.length = source_length
            cross.select()
        self.is_updated = dict.fromkeys(range(len(self.cross)), not begins)
