"""One layer's slots behind transformers' interface of a cache layer."""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import CacheLayerMixin


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
        self.columns: torch.Tensor | None = None  # (3, rows, columns) their positions
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
        """Updates the index in MiniMax M3's layout, (rows, 1, tokens, dim)."""
        return self.update_indexer(idx_k[:, 0]).unsqueeze(1)

    @property
    def indexer_position_ids(self) -> torch.Tensor | None:
        """(3, rows, num_past): the positions of the columns before the forward's tokens, as Qwen 4
        (experimental) keeps them for its three rotary axes.
        """
        if self.columns is not None and self.num_past:
            return self.columns[:, :, : self.num_past]
        past = torch.arange(self.num_past, device=self.positions.device)
        return past.expand(3, len(self.positions), -1) if self.num_past else None

    @indexer_position_ids.setter
    def indexer_position_ids(self, position_ids: torch.Tensor) -> None:
        """A column's position is its number, or one of ``columns``."""

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
