"""Runs steps in which some sequences have images or sounds.

Knows steps, runners and the decoder's entry; knows nothing of processors and encoders.
"""

from __future__ import annotations

from functools import partial

import torch

from hf_triton.text_generation.engine.step import Step
from hf_triton.text_generation.media.encoded import Part, columns_of
from hf_triton.text_generation.media.entry import DecoderEntry

from .cache_runner import CacheRunner
from .runner import Runner


class MediaRunner(Runner):
    """``plain`` runs steps of text, ``fed`` those with tokens that are computed from more than
    their ids: the model itself, whose decoder the ``entry`` feeds. Both use the same cache.
    """

    def __init__(self, plain: Runner, fed: Runner, entry: DecoderEntry) -> None:
        self.plain, self.fed, self.entry = plain, fed, entry
        self.cache, self.chunked_prefill = fed.cache, fed.chunked_prefill
        self.supports_drafts = plain.supports_drafts and fed.supports_drafts
        self.takes_snapshots = plain.takes_snapshots and fed.takes_snapshots
        self.argmax = plain.argmax
        self.name = plain.name if plain is fed else f"{plain.name}, {fed.name} with images"

    @property
    def computes_answers_otherwise(self) -> bool:
        return self.plain.computes_answers_otherwise or self.fed.computes_answers_otherwise

    def forward(self, step: Step) -> torch.Tensor:
        """Computes a step -> logits (num_rows, vocab) in the order of ``step.all_rows``."""
        if not any(_is_changed(part) for part in parts_of(step)):
            return self.plain.forward(step)
        if not isinstance(self.fed, CacheRunner):
            return self._feed(step)
        return self.fed.in_parts(step, partial(self._feed_rows, self.fed))

    def _feed_rows(self, fed: CacheRunner, step: Step) -> torch.Tensor:
        with fed.columns_at(columns_of(parts_of(step))):
            return self._feed(step)

    def _feed(self, step: Step) -> torch.Tensor:
        with self.entry.feeding(parts_of(step)):
            return self.fed.forward(step)


def parts_of(step: Step) -> list[Part]:
    """A step's tokens in the order of its row."""
    decodes = [
        Part(s.encoded, s.num_computed_tokens - 1, s.num_computed_tokens) for s in step.decodes
    ]
    chunks = [Part(chunk.sequence.encoded, chunk.start, chunk.end) for chunk in step.chunks]
    return decodes + chunks


def _is_changed(part: Part) -> bool:
    return part.encoded is not None and part.encoded.changes(part.start, part.end)
