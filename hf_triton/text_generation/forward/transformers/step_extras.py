"""Contexts of forwards whose steps have more than tokens: adapters, or images and sounds. Other
steps are computed without.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch

from hf_triton.text_generation.engine.step import Step
from hf_triton.text_generation.lora.linear import Adapters, RowAdapters, StepAdapters
from hf_triton.text_generation.media.decoder_entry import DecoderEntry, Part
from hf_triton.text_generation.sequence.sequence import Sequence

from .transformers_runner import Runner


class ExtrasRunner(Runner):
    """Computes steps with ``extras`` by ``inner``, within their context, others by ``plain``, over
    one cache.
    """

    def __init__(self, plain: Runner, inner: Runner, extras: StepMedia | AdaptedSteps) -> None:
        self.plain, self.inner, self.extras = plain, inner, extras
        self.cache, self.argmax = inner.cache, plain.argmax
        self.supports_drafts = plain.supports_drafts and inner.supports_drafts
        self.takes_snapshots = plain.takes_snapshots and inner.takes_snapshots

    @property
    def computes_answers_otherwise(self) -> bool:
        return self.plain.computes_answers_otherwise or self.inner.computes_answers_otherwise

    def forward(self, step: Step) -> torch.Tensor:
        if not self.extras.are_in(step):
            return self.plain.forward(step)
        return self.inner.in_parts(step, self._forward)

    def _forward(self, part: Step) -> torch.Tensor:
        with self.extras.around(part):
            return self.inner.forward(part)


class StepMedia:
    """Images and sounds: the decoder's ``entry`` feeds their embeddings."""

    def __init__(self, entry: DecoderEntry) -> None:
        self._entry = entry

    def are_in(self, step: Step) -> bool:
        return any(
            part.encoded is not None and part.encoded.changes(part.start, part.end)
            for part in parts_of(step)
        )

    def around(self, step: Step) -> AbstractContextManager[None]:
        return self._entry.feeding(parts_of(step))


def parts_of(step: Step) -> list[Part]:
    """A step's tokens in the order of its row."""
    decodes = [
        Part(s.encoded, s.num_computed_tokens - 1, s.num_computed_tokens) for s in step.decodes
    ]
    chunks = [Part(chunk.sequence.encoded, chunk.start, chunk.end) for chunk in step.chunks]
    return decodes + chunks


class AdaptedSteps:
    """LoRA adapters."""

    def __init__(self, adapters: Adapters, device: torch.device) -> None:
        self._adapters, self._device = adapters, device

    def are_in(self, step: Step) -> bool:
        return any(sequence.lora_name is not None for sequence in step.sequences)

    def around(self, step: Step) -> AbstractContextManager[None]:
        numbers = [self._number(sequence) for sequence in step.decodes]
        for chunk in step.chunks:
            numbers += [self._number(chunk.sequence)] * (chunk.end - chunk.start)
        sampled = [self._number(sequence) for sequence in step.all_rows]
        rows, own = (RowAdapters.of(each, self._device) for each in (numbers, sampled))
        return self._adapters.applied(StepAdapters(len(numbers), len(sampled), rows, own))

    def _number(self, sequence: Sequence) -> int:
        return self._adapters.number(sequence.adapter_key)
