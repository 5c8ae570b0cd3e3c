"""Runs a step as one packed ``[1, num_tokens]`` forward: decodes and prompt chunks together,
nothing padded.

For models that use transformers' attention interface. Decides no policy: the step says what to
compute.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Protocol

import torch
from transformers import Cache

from hf_triton.runtime.attention import attending, register
from hf_triton.runtime.devices.device import devices_of
from hf_triton.text_generation.engine.step import Step
from hf_triton.text_generation.memory.kv_cache import KVCache

from .packed_attention import PackedStep, PrefillSpan, row_attention, slot_attention
from .positions import CountedPositions
from .runner import Runner

_LEN_STEP = 32  # tokens; cache views end at multiples of it, so that kernels see fewer shapes


class PackedRunner(Runner):
    """Sets the model's attention implementation to packed attention, for as long as it runs, where
    it ``attends``. ``gives_cache``: to models that ask their cache for more than keys and values:
    how many tokens came before (Llama 4), or to keep them of other layers than attend (Gemma 3n,
    HRM).
    """

    supports_drafts = True

    def __init__(
        self,
        model: Any,
        cache: KVCache,
        device: torch.device,
        *,
        attends: bool = True,
        gives_cache: bool = False,
    ) -> None:
        self.model = model
        self.cache = cache
        self.device = device
        self._is_spread = len(devices_of(model)) > 1
        self._counted = CountedPositions(model)
        self._is_checked, self._gives_cache = not attends, gives_cache
        if attends:
            model.set_attn_implementation(register())

    @torch.inference_mode()
    def forward(self, step: Step) -> torch.Tensor:
        """Computes a step -> logits (num_rows, vocab) in the order of ``step.all_rows``."""
        input_ids, packed, last_rows = self._pack(step)
        return self.run(input_ids, packed, last_rows)

    def run(
        self, input_ids: torch.Tensor, packed: PackedStep, rows: torch.Tensor | list[int]
    ) -> torch.Tensor:
        """input_ids (num_tokens,) -> logits (len(rows), vocab) of the tokens numbered ``rows``."""
        attend = partial(row_attention, packed, slot_attention)
        with attending(attend), self._counted.given(packed.positions):
            output = self.model(
                input_ids=input_ids.unsqueeze(0), logits_to_keep=rows, **self._given(packed)
            )
        if not self._is_checked:
            self._check(packed)
        logits: torch.Tensor = output.logits[0]
        return logits

    def _check(self, packed: PackedStep) -> None:
        """Raises ValueError where a layer of the cache was not written: another was, twice."""
        kept = {layer for layer, shape in enumerate(self.cache.shapes) if shape.num_kv_heads}
        if missing := kept - packed.layers:
            raise ValueError(f"attention says nothing of layers {sorted(missing)} of the cache")
        self._is_checked = True

    def _given(self, packed: PackedStep) -> dict[str, Any]:
        """What the model is given beside tokens."""
        given = {"position_ids": packed.positions.unsqueeze(0), "use_cache": False}
        return {**given, "past_key_values": PackedCache(packed)} if self._gives_cache else given

    def _pack(self, step: Step) -> tuple[torch.Tensor, PackedStep, torch.Tensor | list[int]]:
        tokens, last_rows, spans = lay_out(step)
        input_ids, positions, slots = tokens.to(self.device)
        longest = max((s.num_computed_tokens for s in step.decodes), default=0)
        packed = PackedStep(
            cache=self.cache,
            slots=slots,
            positions=positions,
            num_decodes=len(step.decodes),
            max_len=min(-(-longest // _LEN_STEP) * _LEN_STEP, self.cache.size.max_model_len),
            prefills=spans,
        )
        return input_ids, packed, self._numbers(last_rows)

    def _numbers(self, rows: list[int]) -> torch.Tensor | list[int]:
        """The rows as an index for the last hidden states: where those are on another device than
        the inputs, accelerate's hooks would move a tensor to the wrong one, and leave a list.
        """
        if self._is_spread:
            return rows
        return torch.tensor(rows, dtype=torch.int64, device=self.device)


class PackedRow(Protocol):
    """What a cache needs of a step, in slots or in pages; ``positions`` are (num_tokens,)."""

    positions: torch.Tensor

    def write(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        """Puts (1, kv_heads, num_tokens, dim) of both in a layer of the cache, and notes it."""


class PackedCache(Cache):
    """Writes keys and values where a model's layers say, and answers for each token."""

    def __init__(self, packed: PackedRow) -> None:
        super().__init__(layers=[])
        self._packed = packed

    def get_seq_length(self, layer_idx: int = 0) -> Any:
        """(num_tokens,) int64: with tokens' numbers in the row, their positions."""
        positions = self._packed.positions
        return positions - torch.arange(len(positions), device=positions.device)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *_: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(1, kv_heads, num_tokens, dim) each, as they are: attention knows the layer by them."""
        self._packed.write(layer_idx, key_states, value_states)
        return key_states, value_states


def lay_out(step: Step) -> tuple[torch.Tensor, list[int], list[PrefillSpan]]:
    """A step's tokens in one row, decodes in slot order, then chunk after chunk, then draft after
    draft -> their ids, positions and slots, (3, num_tokens) int64 on the CPU; the tokens whose
    logits are wanted; where the chunks and drafts lie.
    """
    input_ids = [sequence.last_token_id for sequence in step.decodes]
    positions = [sequence.num_computed_tokens - 1 for sequence in step.decodes]
    slots = list(range(len(step.decodes)))
    last_rows = list(slots)
    spans = []
    for chunk in step.prefills:
        slot = chunk.sequence.slot
        blocks = tuple(chunk.sequence.encoded.blocks) if chunk.sequence.encoded else ()
        spans.append(PrefillSpan(len(input_ids), slot, chunk.start, chunk.end, blocks))
        input_ids += chunk.sequence.tokens(chunk.start, chunk.end)
        positions += range(chunk.start, chunk.end)
        slots += [slot] * (chunk.end - chunk.start)
        if chunk.is_last:
            last_rows.append(len(input_ids) - 1)
    for draft in step.drafts:
        slot, first = draft.sequence.slot, len(input_ids)
        spans.append(PrefillSpan(first, slot, draft.start, draft.end))
        input_ids += draft.token_ids
        positions += range(draft.start, draft.end)
        slots += [slot] * len(draft.token_ids)
        last_rows += range(first, len(input_ids))
    for chunk, span in zip(step.prefills, spans, strict=False):
        last_rows += [position - span.start + span.first for position in chunk.scored]
    return torch.tensor([input_ids, positions, slots]), last_rows, spans
