"""Runs a step of a model with states as one packed ``[1, num_tokens]`` forward: its modules
run as if every sequence began, and functions of ours replace transformers' own in the model's
source, for the time of a forward. They know where sequences end, and keep their states.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Items
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from hf_triton.text_generation.engine.step import Draft, PrefillChunk
from hf_triton.text_generation.memory.layer_shapes import cache_argument
from hf_triton.text_generation.memory.paged_cache import PagedCache

from ..paged.attention import Attend
from ..paged.page_runner import PagedRunner, RowCache
from ..paged.step import PagedStep

NO_LIMIT = (0.0, float("inf"))
_REPLACED = (
    "causal_conv1d_fn",
    "torch_chunk_gated_delta_rule",
    "chunk_kimi_delta_attention",
    "mamba2_chunk_scan",
    "mamba_selective_scan",
)


class UnsupportedStatesError(Exception): ...


class Run(NamedTuple):
    """``num_tokens`` of one sequence from row ``first`` on; ``begins`` is 1 where the sequence
    begins with them. Its state is in row ``slot`` of the tables, and after ``num_copied`` tokens
    (0: never) it is copied to row ``copy``. The first ``num_prompt`` are the prompt's, others were
    generated before a preemption.
    """

    first: int
    num_tokens: int
    slot: int
    begins: int = 0
    num_copied: int = 0
    copy: int = 0
    num_prompt: int = 0


def runs_of(chunks: Items[PrefillChunk | Draft], first: int) -> list[Run]:
    runs = []
    for chunk in chunks:
        num_tokens, kept, copied = chunk.end - chunk.start, chunk.sequence.snapshot, (0, 0)
        if kept is not None and chunk.start < kept.num_tokens <= chunk.end:
            copied = kept.num_tokens - chunk.start, kept.slot
        num_prompt = max(0, min(num_tokens, chunk.sequence.num_prompt_tokens - chunk.start))
        begins = int(not chunk.start)
        slot = chunk.sequence.slot
        runs.append(Run(first, num_tokens, slot, begins, *copied, num_prompt))
        first += num_tokens
    return runs


class RowFunctions:
    """Replacements of a model's functions of states, over a cache. ``clamps_prompts``: a generated
    token leaves another state than the same token of a prompt.
    """

    def __init__(self, cache: PagedCache) -> None:
        self.clamps_prompts = False
        self._states = {
            (layer, shape.kind, shape.index): stored
            for layer, kept in enumerate(cache.shapes)
            for shape, stored in zip(kept.states, cache.states[layer], strict=True)
        }
        self._due: dict[str, tuple[int, str, int]] = {}
        self._unused = set(self._states)

    def begin(self, step: PagedStep) -> None:
        self._unused = set(self._states)
        self._due.clear()

    def end(self) -> None:
        """Raises UnsupportedStatesError where a state was not updated by these functions."""
        if self._unused:
            raise UnsupportedStatesError(f"{len(self._unused)} states are updated elsewhere")

    def expect(self, kind: str, layer: int, index: int) -> None:
        """Names the state of the next call for one of this ``kind``."""
        self._due[kind] = layer, kind, index

    def in_place_of(self, name: str, source: dict[str, Any]) -> Callable[..., Any]:
        """The replacement for the function of that name in a module's ``source``."""
        function: Callable[..., Any] = getattr(self, name)
        return function

    def _state(self, kind: str) -> torch.Tensor:
        key = self._due.pop(kind, None)
        if key not in self._unused:
            raise UnsupportedStatesError(f"a {kind} state is updated twice, or out of turn")
        self._unused.remove(key)
        return self._states[key]


class StateRunner(PagedRunner):
    """Computes by ``functions`` of states, made for the cache."""

    name = "packed, states"
    supports_drafts = False  # a state holds all tokens, those that were wrong too
    takes_snapshots = True

    def __init__(
        self,
        model: Any,
        cache: PagedCache,
        device: torch.device,
        *attend: Attend,
        functions: Callable[[PagedCache], RowFunctions],
    ) -> None:
        super().__init__(model, cache, device, *attend)
        self._functions = functions(cache)
        self._cache_name = cache_argument(model)
        self._takes_positions = "position_ids" in inspect.signature(model.forward).parameters
        modules = {type(module).__module__ for module in model.modules()}
        self._sources = [vars(sys.modules[name]) for name in modules if name in sys.modules]

    @property
    def computes_answers_otherwise(self) -> bool:
        return self._functions.clamps_prompts

    def run(self, step: PagedStep) -> torch.Tensor:
        self._functions.begin(step)
        with self._calling_functions():
            logits = super().run(step)
        self._functions.end()
        return logits

    def _given(self, step: PagedStep) -> dict[str, Any]:
        given = {self._cache_name: _StateCache(step, self._functions), "use_cache": True}
        positions = {"position_ids": step.long_positions.unsqueeze(0)}
        return {**given, **(positions if self._takes_positions else {})}

    @contextmanager
    def _calling_functions(self) -> Iterator[None]:
        """Replaces functions in the model's source. One engine thread a process: no lock."""
        found = [(source, name) for source in self._sources for name in _REPLACED if name in source]
        own = [source[name] for source, name in found]
        try:
            for source, name in found:
                source[name] = self._functions.in_place_of(name, source)
            yield
        finally:
            for (source, name), function in zip(found, own, strict=True):
                source[name] = function


class _StateCache(RowCache):
    """An empty cache, so that modules compute all sequences in the same way; it notes which state
    they update next.
    """

    def __init__(self, row: PagedStep, functions: RowFunctions) -> None:
        super().__init__(row)
        self._functions = functions

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> None: ...

    def update_conv_state(
        self, conv_states: torch.Tensor, layer_idx: int, state_idx: int = 0, **_: Any
    ) -> torch.Tensor:
        self._functions.expect("conv", layer_idx, state_idx)
        return conv_states

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> None:
        """Returns None: the function has the state."""
        self._functions.expect("recurrent", layer_idx, state_idx)

    def update_recurrent_state(
        self, recurrent_states: torch.Tensor, layer_idx: int, state_idx: int = 0, **_: Any
    ) -> torch.Tensor:
        return recurrent_states

    def has_previous_state(
        self, layer_idx: int | None = None, state_idx: int | None = None
    ) -> bool:
        return False

    def is_recording_past(self, layer_idx: int) -> bool:
        return False

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0
