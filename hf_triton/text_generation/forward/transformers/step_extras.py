"""Contexts of forwards whose steps have more than tokens: adapters, or images and sounds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch

from hf_triton.text_generation.engine.step import Step
from hf_triton.text_generation.lora.linear import Adapters, RowAdapters, StepAdapters
from hf_triton.text_generation.media.decoder_entry import DecoderEntry, Part


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

    @contextmanager
    def around(self, step: Step) -> Iterator[None]:
        """One engine thread a process: no lock."""
        by_key = self._adapters.numbers
        numbers = [by_key[sequence.adapter_key] for sequence in step.decodes]
        for chunk in step.chunks:
            numbers += [by_key[chunk.sequence.adapter_key]] * (chunk.end - chunk.start)
        sampled = [by_key[sequence.adapter_key] for sequence in step.all_rows]
        tokens, rows = (
            RowAdapters(each, self._device) if any(each) else None for each in (numbers, sampled)
        )
        self._adapters.step = StepAdapters(len(numbers), len(sampled), tokens, rows)
        try:
            yield
        finally:
            self._adapters.step = None
