"""The interface between the in-flight engine and its runners, and the contexts of forwards whose
steps have more than tokens: adapters, or images and sounds.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch

from hf_triton.text_generation.engine.step import Step
from hf_triton.text_generation.lora.linear import Adapters, RowAdapters, StepAdapters
from hf_triton.text_generation.media.decoder_entry import DecoderEntry, Part

_POSITIONS, _COUNTED_FROM = "position_ids", "past_key_values_length"


def argmax(logits: torch.Tensor) -> torch.Tensor:
    """logits (rows, vocab) -> the first largest of each row, (rows,) int64; NaN is the largest."""
    return logits.argmax(dim=-1)


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


class Runner(ABC):
    """Computes steps over ``cache``: those with ``extras`` within their context, others by
    ``plain``, where that is another runner. ``supports_drafts``: it can take tokens back.
    ``takes_snapshots``: its states can be kept for other prompts.
    """

    name = ""
    cache: Any
    extras: StepMedia | AdaptedSteps | None = None
    plain: Runner | None = None
    supports_drafts = False
    takes_snapshots = False
    argmax: Callable[[torch.Tensor], torch.Tensor] = staticmethod(argmax)

    @property
    def computes_answers_otherwise(self) -> bool:
        """True if a generated token leaves another state than the same token of a prompt."""
        return False

    def in_parts(self, step: Step, forward: Callable[[Step], torch.Tensor]) -> torch.Tensor:
        """Computes a step by one or more calls of ``forward`` -> logits (num_rows, vocab)."""
        return forward(step)

    def compute(self, step: Step) -> torch.Tensor:
        """Copies shared states and pages, then computes the step."""
        self.cache.copy(step.copies)
        if self.extras is not None and self.extras.are_in(step):
            return self.in_parts(step, self._with_extras)
        return (self.plain or self).forward(step)

    def _with_extras(self, part: Step) -> torch.Tensor:
        assert self.extras is not None
        with self.extras.around(part):
            return self.forward(part)

    @abstractmethod
    def forward(self, step: Step) -> torch.Tensor:
        """Computes a step -> logits (num_rows, vocab) in the order of ``step.all_rows``."""


class CountedPositions:
    """Gives positions to embeddings of models that take none (BART and its kin): they count one
    offset for a whole batch, from the cache's length.
    """

    def __init__(self, model: Any) -> None:
        names = inspect.signature(model.forward).parameters
        self._modules = [] if _POSITIONS in names else [m for m in model.modules() if _counts(m)]

    @contextmanager
    def given(self, positions: torch.Tensor) -> Iterator[None]:
        """``positions`` of any shape; the modules give (*shape, size)."""

        def give(module: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
            return args, {**kwargs, _POSITIONS: positions.flatten()}

        def shape(module: Any, args: Any, output: torch.Tensor) -> torch.Tensor:
            return output.reshape(*positions.shape, -1)

        with ExitStack() as stack:
            for module in self._modules:
                before = module.register_forward_pre_hook(give, with_kwargs=True)
                stack.callback(before.remove)
                stack.callback(module.register_forward_hook(shape).remove)
            yield


def _counts(module: Any) -> bool:
    return {_POSITIONS, _COUNTED_FROM} <= inspect.signature(module.forward).parameters.keys()
