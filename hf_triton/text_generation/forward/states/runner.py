"""Runs a step of a model with states as one packed ``[1, num_tokens]`` forward on the CPU.

Its modules run over the row as they are. Only where a convolution or a recurrence goes on are
sequences told apart, by compiled functions (functions.py) that stand, for the time of the forward,
where transformers' own stand in the model's source; so a scan takes a state that transformers'
does not, and prompts are computed in chunks. Layers that attend do so as in the packed runners.
"""

from __future__ import annotations

from typing import Any

import torch

from hf_triton.text_generation.engine.step import Step
from hf_triton.text_generation.memory.kv_cache import KVCache
from hf_triton.text_generation.memory.slot_contents import SlotCopy

from ..transformers.latent_runner import LatentRunner
from ..transformers.packed_attention import PackedStep
from .functions import Runs, StateFunctions
from .row import RowModel, Run, UnsupportedStatesError, runs_of, snapshot_in


class StateRunner(LatentRunner):
    """Raises UnsupportedStatesError for another device, ImportError without Numba."""

    name = "packed, states"
    supports_drafts = False  # a state holds all tokens, those that were wrong too
    takes_snapshots = True

    def __init__(self, model: Any, cache: KVCache, device: torch.device) -> None:
        if device.type != "cpu":
            raise UnsupportedStatesError(f"it is on {device.type}")
        attends = any(shape.num_kv_heads for shape in cache.shapes)
        super().__init__(model, cache, device, attends=attends)
        self._functions = StateFunctions(cache)
        self._row_model = RowModel(model, self._functions)

    @property
    def computes_answers_otherwise(self) -> bool:
        return self._functions.clamps_prompts

    @torch.inference_mode()
    def forward(self, step: Step) -> torch.Tensor:
        """Computes a step -> logits (num_rows, vocab) in the order of ``step.all_rows``."""
        decodes = [Run(row, 1, sequence.slot) for row, sequence in enumerate(step.decodes)]
        runs = decodes + runs_of(step.prefills, len(decodes))
        table = torch.tensor([run[:6] for run in runs])
        self._functions.begin(Runs(table, len(decodes)))
        logits = super().forward(step)
        self._functions.end()
        for chunk in step.prefills:
            if kept := snapshot_in(chunk):
                self.cache.copy_tokens(SlotCopy(chunk.sequence.slot, kept.slot, kept.num_tokens))
        return logits

    def run(
        self, input_ids: torch.Tensor, packed: PackedStep, rows: torch.Tensor | list[int]
    ) -> torch.Tensor:
        with self._row_model.calling_functions():
            return super().run(input_ids, packed, rows)

    def _given(self, packed: PackedStep) -> dict[str, Any]:
        return self._row_model.arguments(packed)
