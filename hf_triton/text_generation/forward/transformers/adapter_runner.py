"""Sets the adapter of each token of a step, and runs the step.

Knows steps and runners; knows nothing of weights.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch

from hf_triton.text_generation.engine.step import Step
from hf_triton.text_generation.lora.linear import Adapters
from hf_triton.text_generation.lora.rows import RowAdapters, StepAdapters
from hf_triton.text_generation.sequence.sequence import Sequence

from .cache_runner import CacheRunner
from .runner import Runner


class AdaptedRunner(Runner):
    """``plain`` runs steps without adapters, ``inner`` those with them: the same runner, over pages
    in an ``AdaptedPageRunner`` (forward/paged/runner.py).
    """

    fixed_shapes = False  # tests set it

    def __init__(
        self, plain: Runner, inner: Runner, adapters: Adapters, device: torch.device
    ) -> None:
        self.plain, self.inner, self.adapters, self.device = plain, inner, adapters, device
        self.fixed_shapes = self.fixed_shapes or device.type != "cpu"
        self.cache, self.name = plain.cache, f"{plain.name}, adapters"

    def forward(self, step: Step) -> torch.Tensor:
        """Computes a step -> logits (num_rows, vocab) in the order of ``step.all_rows``."""
        computed = (*step.decodes, *(chunk.sequence for chunk in step.chunks))
        if all(sequence.lora_name is None for sequence in computed):
            return self.plain.forward(step)
        if self.plain.keeps_pages:
            step.inputs.adapters = [self._number(sequence) for sequence in computed]
            return self.inner.forward(step)
        if not isinstance(self.inner, CacheRunner):
            return self._forward(step)
        return self.inner.in_parts(step, self._forward)

    def _forward(self, step: Step) -> torch.Tensor:
        numbers = [self._number(sequence) for sequence in step.decodes]
        for chunk in step.chunks:
            numbers += [self._number(chunk.sequence)] * (chunk.end - chunk.start)
        sampled = [self._number(sequence) for sequence in step.all_rows]
        with self._applied(numbers, sampled):
            return self.inner.forward(step)

    def _applied(self, numbers: list[int], sampled: list[int]) -> AbstractContextManager[None]:
        if self.fixed_shapes:
            both = torch.tensor(numbers + sampled, dtype=torch.int32).to(self.device)
            return self.adapters.on_device(both[: len(numbers)], both[len(numbers) :])
        rows, own = _rows(numbers), _rows(sampled)
        return self.adapters.applied(StepAdapters(len(numbers), len(sampled), rows, own))

    def _number(self, sequence: Sequence) -> int:
        return self.adapters.number(sequence.adapter_key)


def _rows(numbers: list[int]) -> RowAdapters | None:
    return RowAdapters(numbers) if any(numbers) else None
