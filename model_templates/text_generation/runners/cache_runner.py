"""Runs a step through ``transformers.Cache``, which supports the most decoders.

A prompt chunk is a ``[1, chunk]`` forward into its slot; the decodes are one ``[num_seqs, 1]``
forward over the running slots, with a 2-D attention mask and explicit positions. New keys and
values are written at each row's own position, old ones are read as a view. It is 10 to 20 % slower
than the packed runner, but the model only has to use the public ``Cache``.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from transformers import Cache
from transformers.cache_utils import CacheLayerMixin

from ..engine.scheduler import PrefillChunk, Step
from ..kv.kv_cache import KVCache
from ..sequence.sequence import Sequence


class SlotLayer(CacheLayerMixin):
    """One layer of the slots, as transformers sees it during one forward."""

    is_sliding = False

    def __init__(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.stored_keys, self.stored_values = keys, values
        self.is_initialized = True
        self.rows: slice = slice(0, 0)
        self.positions = torch.empty(0)
        self.num_past = 0
        self.length = 0

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing to do: the slots were there before the first token."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Writes (rows, kv_heads, tokens, dim) at the rows' positions; returns views up to the
        longest row.
        """
        keys, values = self.stored_keys[self.rows], self.stored_values[self.rows]
        positions = self.positions.to(keys.device)  # (rows, tokens)
        rows = torch.arange(keys.shape[0], device=keys.device).unsqueeze(1)
        keys[rows, :, positions] = key_states.transpose(1, 2)
        values[rows, :, positions] = value_states.transpose(1, 2)
        return keys[:, :, : self.length], values[:, :, : self.length]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length, 0

    def get_seq_length(self) -> int:
        return self.num_past

    def get_max_length(self) -> int:
        return self.stored_keys.shape[2]


class SlotCache(Cache):
    """The preallocated slots behind transformers' own cache interface."""

    def __init__(self, cache: KVCache) -> None:
        self.slot_layers = [
            SlotLayer(keys, values) for keys, values in zip(cache.keys, cache.values, strict=True)
        ]
        super().__init__(layers=list(self.slot_layers))

    def select(self, rows: slice, positions: torch.Tensor, num_past: int, length: int) -> None:
        """Sets the slots of the next forward, the positions of its tokens, and how many columns
        they attend to.
        """
        for layer in self.slot_layers:
            layer.rows, layer.positions = rows, positions
            layer.num_past, layer.length = num_past, length


class CacheRunner:
    """Runs the model as it is, with its own attention."""

    name = "cache"

    def __init__(self, model: Any, cache: KVCache, device: torch.device) -> None:
        self.model = model
        self.cache = cache
        self.device = device
        self._slots = SlotCache(cache)
        self._accepted = set(inspect.signature(model.forward).parameters)
        self._windows = _sliding_windows(model.config.get_text_config())

    @torch.inference_mode()
    def forward(self, step: Step) -> torch.Tensor:
        """Computes a step -> logits (num_sampled, vocab) in the order of ``step.sampled``."""
        logits = [self._decode(step.decodes)] if step.decodes else []
        for chunk in step.prefills:
            last = self._prefill(chunk)
            if chunk.is_last:
                logits.append(last)
        return torch.cat(logits) if logits else torch.empty(0)

    def _decode(self, sequences: list[Sequence]) -> torch.Tensor:
        input_ids = torch.tensor([[s.last_token_id] for s in sequences], device=self.device)
        positions = torch.tensor(
            [[s.num_computed_tokens - 1] for s in sequences], device=self.device
        )
        length = max(s.num_computed_tokens for s in sequences)
        self._slots.select(slice(0, len(sequences)), positions, length - 1, length)
        return self._run(input_ids, positions, length)

    def _prefill(self, chunk: PrefillChunk) -> torch.Tensor:
        tokens = chunk.sequence.tokens(chunk.start, chunk.end)
        input_ids = torch.tensor([tokens], device=self.device)
        positions = torch.arange(chunk.start, chunk.end, device=self.device).unsqueeze(0)
        slot = chunk.sequence.slot
        self._slots.select(slice(slot, slot + 1), positions, chunk.start, chunk.end)
        return self._run(input_ids, positions, chunk.end)

    def _run(self, input_ids: torch.Tensor, positions: torch.Tensor, length: int) -> torch.Tensor:
        """input_ids, positions (rows, tokens) -> logits (rows, vocab) of each row's last token."""
        inputs = {
            "input_ids": input_ids,
            "position_ids": positions,
            "attention_mask": self._mask(positions, length),
            "past_key_values": self._slots,
            "use_cache": True,
            "logits_to_keep": 1,
        }
        output = self.model(
            **{name: value for name, value in inputs.items() if name in self._accepted}
        )
        logits: torch.Tensor = output.logits[:, -1]
        return logits

    def _mask(self, positions: torch.Tensor, length: int) -> Any:
        """What the model takes as ``attention_mask``.

        (rows, length) of 0 and 1 where all layers see everything before them. A sliding window must
        follow each row's own position, which transformers derives from one offset for all rows:
        there the mask is made here, (rows, 1, tokens, length) additive, one for each kind of layer.
        """
        columns = torch.arange(length, device=self.device)
        if not self._windows:
            return (columns <= positions[:, -1:]).to(torch.int64)
        masks = {}
        for kind, window in self._windows.items():
            hidden = columns > positions.unsqueeze(-1)  # (rows, tokens, length)
            if window:
                hidden = hidden | (columns <= positions.unsqueeze(-1) - window)
            mask = torch.zeros(hidden.shape, dtype=self.model.dtype, device=self.device)
            masks[kind] = mask.masked_fill_(hidden, torch.finfo(mask.dtype).min).unsqueeze(1)
        return masks if len(masks) > 1 else next(iter(masks.values()))


def _sliding_windows(config: Any) -> dict[str, int]:
    """The layer kinds of a model with sliding windows and each kind's window (0: none); empty
    without any.
    """
    window = getattr(config, "sliding_window", None)
    if not window:
        return {}
    kinds = sorted(set(getattr(config, "layer_types", None) or ["sliding_attention"]))
    if "sliding_attention" not in kinds:
        return {}
    return {kind: window if kind == "sliding_attention" else 0 for kind in kinds}
