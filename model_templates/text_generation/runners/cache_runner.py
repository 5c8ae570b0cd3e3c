"""Runs a step through ``transformers.Cache``, which supports the most decoders.

A prompt chunk is a ``[1, chunk]`` forward into its slot; the decodes are one ``[num_seqs, 1]``
forward over the running slots, with a 2-D attention mask and explicit positions. New keys and
values are written at each row's own position, old ones are read as a view; states are updated in
place. It is 10 to 20 % slower than the packed runner, but the model only has to use the public
``Cache``.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import torch
from hf_runtime.devices.device import to_device

from ..engine.step import PrefillChunk, Step
from ..kv.kv_cache import KVCache
from ..kv.layer_shapes import cache_argument
from ..sequence.sequence import Sequence
from .slot_cache import slot_cache

# Layers that keep states and attend to nothing: no row is padded, so they take no mask.
_STATE_KINDS = {"linear_attention", "conv"}
_SLIDING_KINDS = {"sliding_attention", "hybrid_sliding"}


class CacheRunner:
    """Runs the model as it is, with its own attention."""

    name = "cache"

    def __init__(self, model: Any, cache: KVCache, device: torch.device) -> None:
        self.model = model
        self.cache = cache
        self.device = device
        self._slots = slot_cache(model, cache)
        self._cache_name = cache_argument(model)
        self._accepted = set(inspect.signature(model.forward).parameters)
        self._attends = any(shape.num_kv_heads for shape in cache.shapes)
        self._has_states = any(shape.states for shape in cache.shapes)
        self._windows = sliding_windows(model.config.get_text_config())

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
        last = [[[s.last_token_id] for s in sequences]]
        last.append([[s.num_computed_tokens - 1] for s in sequences])
        input_ids, positions = to_device(torch.tensor(last), self.device)  # (rows, 1) each
        length = max(s.num_computed_tokens for s in sequences)
        self._slots.select(slice(0, len(sequences)), positions, length - 1, length)
        return self._run(input_ids, positions, length)

    def _prefill(self, chunk: PrefillChunk) -> torch.Tensor:
        tokens = chunk.sequence.tokens(chunk.start, chunk.end)
        input_ids = to_device(torch.tensor([tokens]), self.device)
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
            self._cache_name: self._slots,
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
        if not self._attends:
            return None
        columns = torch.arange(length, device=self.device)
        if not self._windows:
            return (columns <= positions[:, -1:]).to(torch.int64)
        masks: dict[str, torch.Tensor | None] = {}
        for kind, window in self._windows.items():
            hidden = columns > positions.unsqueeze(-1)  # (rows, tokens, length)
            if window:
                hidden = hidden | (columns <= positions.unsqueeze(-1) - window)
            mask = torch.zeros(hidden.shape, dtype=self.model.dtype, device=self.device)
            masks[kind] = mask.masked_fill_(hidden, torch.finfo(mask.dtype).min).unsqueeze(1)
        if self._has_states:
            return {**masks, **dict.fromkeys(_STATE_KINDS)}
        return masks if len(masks) > 1 else next(iter(masks.values()))


class WholePromptRunner(CacheRunner):
    """For models whose recurrence does not go on from an earlier chunk's state (transformers' scan
    of Mamba 1 takes none): no prompt is cut.
    """

    name = "cache, whole prompts"
    cuts_prompts = False


class LocalAttentionRunner(CacheRunner):
    """For GPT-Neo, whose local layers count their window from the longest row of a batch."""

    def __init__(self, model: Any, cache: KVCache, device: torch.device) -> None:
        super().__init__(model, cache, device)
        self._window = int(model.config.window_size)
        self._local = [
            module
            for module in model.modules()
            if getattr(module, "attention_type", None) == "local" and hasattr(module, "bias")
        ]

    def _run(self, input_ids: torch.Tensor, positions: torch.Tensor, length: int) -> torch.Tensor:
        """As before, with what each row's token sees where the layers look up their window: a
        (rows, 1, length, length) bool, of which they read the last row.
        """
        if positions.shape[1] > 1:
            return super()._run(input_ids, positions, length)
        columns = torch.arange(length, device=self.device)
        visible = (columns <= positions) & (columns > positions - self._window)
        own = [layer.bias for layer in self._local]
        try:
            for layer in self._local:
                layer.bias = visible[:, None, None].expand(-1, 1, length, -1).to(layer.bias.device)
            return super()._run(input_ids, positions, length)
        finally:
            for layer, bias in zip(self._local, own, strict=True):
                layer.bias = bias


def forwards_of(step: Step) -> Iterator[Step]:
    """The forwards that the cache runner makes of a step, each a step of its own."""
    if step.decodes:
        yield Step(step.decodes)
    for chunk in step.prefills:
        yield Step(prefills=[chunk])


def sliding_windows(config: Any) -> dict[str, int]:
    """The layer kinds of a model with sliding windows and each kind's window (0: none); empty
    without any.
    """
    window = getattr(config, "sliding_window", None)
    kinds = set(getattr(config, "layer_types", None) or ["sliding_attention"])
    if not window or not kinds & _SLIDING_KINDS:
        return {}
    if "hybrid_sliding" in kinds:  # some models call their masks by what those layers attend to
        kinds |= {"full_attention", "sliding_attention"}
    return {kind: window if kind in _SLIDING_KINDS else 0 for kind in sorted(kinds - _STATE_KINDS)}
