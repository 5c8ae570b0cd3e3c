"""Runs a step of a model with states as one packed ``[1, num_tokens]`` forward over a cache in
pages: keys and values lie in the pages of a sequence, its states in a row of their tables.
"""

from __future__ import annotations

from typing import Any

import torch

from hf_triton.text_generation.memory.paged_cache import PagedCache

from ..paged.runner import PagedRunner
from ..paged.step import PagedStep
from .own_functions import OwnFunctions
from .row import RowModel


class PagedStateRunner(PagedRunner):
    """Calls the model's own functions of states, decodes together and each chunk by itself: how
    many calls a step takes depends on its chunks, so that a graph holds decodes alone.
    """

    name = "paged, states"
    supports_drafts = False  # a state holds all tokens, those that were wrong too
    takes_snapshots = True
    captures_chunks = False

    def __init__(self, model: Any, cache: PagedCache, *others: Any) -> None:
        super().__init__(model, cache, *others)
        self._functions = OwnFunctions(cache)
        self._row_model = RowModel(model, self._functions)

    @property
    def computes_answers_otherwise(self) -> bool:
        return self._functions.clamps_prompts

    def run(self, step: PagedStep) -> torch.Tensor:
        """Logits (len(step.last), vocab) of a step on the device."""
        self._functions.begin(step)
        with self._row_model.calling_functions():
            logits = super().run(step)
        self._functions.end()
        return logits

    def _given(self, step: PagedStep) -> dict[str, Any]:
        return self._row_model.arguments(step)
