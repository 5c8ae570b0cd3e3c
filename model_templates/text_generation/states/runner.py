"""Runs a step of a model with states as one packed ``[1, num_tokens]`` forward on the CPU.

Its modules run over the row as they are. Only where a convolution or a recurrence goes on are
sequences told apart, by compiled functions (functions.py) that stand, for the time of the forward,
where transformers' own stand in the model's source; so a scan takes a state that transformers'
does not, and prompts are computed in chunks. Layers that attend do so as in the packed runners.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ..engine.step import PrefillChunk, Step
from ..kv.kv_cache import KVCache
from ..kv.layer_shapes import cache_argument
from ..kv.slot_contents import SlotCopy
from ..runners.latent_runner import LatentRunner
from ..runners.packed_attention import PackedStep
from ..runners.packed_runner import PackedCache
from ..sequence.sequence import Snapshot
from .functions import Runs, StateFunctions, UnsupportedStatesError

_REPLACED = (
    "causal_conv1d_fn",
    "torch_chunk_gated_delta_rule",
    "chunk_kimi_delta_attention",
    "mamba2_chunk_scan",
    "mamba_selective_scan",
)


class StateRunner(LatentRunner):
    """Raises UnsupportedStatesError for another device, ImportError without Numba."""

    name = "packed, states"
    takes_drafts = False  # a state holds all tokens, those that were wrong too
    takes_snapshots = True

    def __init__(self, model: Any, cache: KVCache, device: torch.device) -> None:
        if device.type != "cpu":
            raise UnsupportedStatesError(f"it is on {device.type}")
        attends = any(shape.num_kv_heads for shape in cache.shapes)
        super().__init__(model, cache, device, attends=attends)
        self._functions = StateFunctions(cache)
        self._cache_name = cache_argument(model)
        self._takes_positions = "position_ids" in inspect.signature(model.forward).parameters
        modules = {type(module).__module__ for module in model.modules()}
        self._sources = [vars(sys.modules[name]) for name in modules if name in sys.modules]

    @property
    def computes_answers_otherwise(self) -> bool:
        """Whether a token's state is another one where it was generated than in a prompt."""
        return self._functions.clamps_prompts

    @torch.inference_mode()
    def forward(self, step: Step) -> torch.Tensor:
        """Computes a step -> logits (num_rows, vocab) in the order of ``step.all_rows``."""
        self._functions.begin(_runs(step))
        logits = super().forward(step)
        self._functions.end()
        for chunk in step.prefills:
            if kept := _snapshot(chunk):
                self.cache.copy_tokens(SlotCopy(chunk.sequence.slot, kept.slot, kept.num_tokens))
        return logits

    def run(
        self, input_ids: torch.Tensor, packed: PackedStep, rows: torch.Tensor | list[int]
    ) -> torch.Tensor:
        with self._replaced():
            return super().run(input_ids, packed, rows)

    def _given(self, packed: PackedStep) -> dict[str, Any]:
        cache = {self._cache_name: _RowCache(packed, self._functions), "use_cache": True}
        positions = {"position_ids": packed.positions.unsqueeze(0)}
        return {**cache, **(positions if self._takes_positions else {})}

    @contextmanager
    def _replaced(self) -> Iterator[None]:
        """Has the model's source call our functions. One engine thread a process: no lock."""
        before = [
            (source, name, source[name])
            for source in self._sources
            for name in _REPLACED
            if name in source
        ]
        try:
            for source, name, _ in before:
                source[name] = getattr(self._functions, name)
            yield
        finally:
            for source, name, own in before:
                source[name] = own


def _runs(step: Step) -> Runs:
    """The row's tokens by sequence, in the order of ``lay_out``."""
    table = [(row, 1, row, 0, 0, 0) for row in range(len(step.decodes))]
    first = len(table)
    for chunk in step.prefills:
        num_tokens = chunk.end - chunk.start
        kept = _snapshot(chunk)
        after = (kept.num_tokens - chunk.start, kept.slot) if kept else (0, 0)
        table.append((first, num_tokens, chunk.sequence.slot, int(not chunk.start), *after))
        first += num_tokens
    return Runs(torch.tensor(table), len(step.decodes))


def _snapshot(chunk: PrefillChunk) -> Snapshot | None:
    """The snapshot that the sequence is to leave within this chunk."""
    kept = chunk.sequence.snapshot
    return kept if kept and chunk.start < kept.num_tokens <= chunk.end else None


class _RowCache(PackedCache):
    """The cache as modules see it: nothing is in it, so that they compute all sequences in the same
    way; what they ask for says which state goes on next.
    """

    def __init__(self, packed: PackedStep, functions: StateFunctions) -> None:
        super().__init__(packed)
        self._functions = functions

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> None:
        """None: the function has it."""

    def update_conv_state(
        self, conv_states: torch.Tensor, layer_idx: int, state_idx: int = 0, **_: Any
    ) -> torch.Tensor:
        """What goes in, alone."""
        self._functions.expect("conv", layer_idx, state_idx)
        return conv_states

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> None:
        """None: the function has it."""
        self._functions.expect("recurrent", layer_idx, state_idx)

    def update_recurrent_state(
        self, recurrent_states: torch.Tensor, layer_idx: int, state_idx: int = 0, **_: Any
    ) -> torch.Tensor:
        """It is updated."""
        return recurrent_states

    def has_previous_state(
        self, layer_idx: int | None = None, state_idx: int | None = None
    ) -> bool:
        return False

    def is_recording_past(self, layer_idx: int) -> bool:
        return False

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0
