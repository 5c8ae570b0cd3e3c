"""How a model with states runs over a row of tokens of many sequences: its modules run as they are,
as if every sequence began, and functions of ours stand where transformers' own stand in the
model's source, for the time of a forward. They know where sequences end and keep their states.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Items
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import torch

from hf_triton.text_generation.engine.step import Draft, PrefillChunk
from hf_triton.text_generation.memory.layer_shapes import LayerShape, cache_argument
from hf_triton.text_generation.sequence.sequence import Snapshot

from ..paged.runner import RowCache
from ..paged.step import PagedStep

NO_LIMIT = (0.0, float("inf"))
_REPLACED = (
    "causal_conv1d_fn",
    "torch_chunk_gated_delta_rule",
    "chunk_kimi_delta_attention",
    "mamba2_chunk_scan",
    "mamba_selective_scan",
)


class UnsupportedStatesError(Exception):
    """These functions don't hold the model; the text says why."""


class StateTables(Protocol):
    """A cache with tables of states: (rows, ...) for each of a layer's shapes."""

    shapes: list[LayerShape]
    states: list[list[torch.Tensor]]


class Run(NamedTuple):
    """``num_tokens`` of one sequence, from row ``first`` on; ``begins`` is 1 where it begins there.
    Its state lies in row ``slot`` of the tables; after ``num_copied`` tokens, or 0, it is copied to
    row ``copy``. The first
    ``num_prompt`` are its prompt's; others were generated, and it was preempted.
    """

    first: int
    num_tokens: int
    slot: int
    begins: int = 0
    num_copied: int = 0
    copy: int = 0
    num_prompt: int = 0


def runs_of(chunks: Items[PrefillChunk | Draft], first: int) -> list[Run]:
    """Chunk after chunk, from row ``first`` on."""
    runs = []
    for chunk in chunks:
        num_tokens = chunk.end - chunk.start
        kept = snapshot_in(chunk)
        copied = (kept.num_tokens - chunk.start, kept.slot) if kept else (0, 0)
        num_prompt = max(0, min(num_tokens, chunk.sequence.num_prompt_tokens - chunk.start))
        begins = int(not chunk.start)
        slot = chunk.sequence.slot
        runs.append(Run(first, num_tokens, slot, begins, *copied, num_prompt))
        first += num_tokens
    return runs


def snapshot_in(chunk: PrefillChunk | Draft) -> Snapshot | None:
    """The snapshot that the sequence is to leave within this chunk."""
    kept = chunk.sequence.snapshot
    return kept if kept and chunk.start < kept.num_tokens <= chunk.end else None


class RowFunctions:
    """The functions, over a cache's states. ``clamps_prompts``: a token's state is another one
    where it was generated than in a prompt.
    """

    def __init__(self, cache: StateTables) -> None:
        self.clamps_prompts = False
        self._states = {
            (layer, shape.kind, shape.index): stored
            for layer, kept in enumerate(cache.shapes)
            for shape, stored in zip(kept.states, cache.states[layer], strict=True)
        }
        self._due: dict[str, tuple[int, str, int]] = {}
        self._left = set(self._states)

    def _begin(self) -> None:
        """A step begins."""
        self._left = set(self._states)
        self._due.clear()

    def end(self) -> None:
        """
        Raises:
            UnsupportedStatesError: a state was left out, so that the model is not what it seems.
        """
        if self._left:
            raise UnsupportedStatesError(f"{len(self._left)} states go on in another way")

    def expect(self, kind: str, layer: int, index: int) -> None:
        """The next call for a state of this ``kind`` is for this one."""
        self._due[kind] = layer, kind, index

    def in_place_of(self, name: str, source: dict[str, Any]) -> Callable[..., Any]:
        """What stands for the function of that name of a module's ``source``."""
        function: Callable[..., Any] = getattr(self, name)
        return function

    def _state(self, kind: str) -> torch.Tensor:
        """The state that the call is for, (slots, ...)."""
        key = self._due.pop(kind, None)
        if key not in self._left:
            raise UnsupportedStatesError(f"a {kind} state goes on twice in a step, or unasked")
        self._left.remove(key)
        return self._states[key]


class RowModel:
    """The model as it is called over a row."""

    def __init__(self, model: Any, functions: RowFunctions) -> None:
        self._functions = functions
        self._cache_name = cache_argument(model)
        self._takes_positions = "position_ids" in inspect.signature(model.forward).parameters
        modules = {type(module).__module__ for module in model.modules()}
        self._sources = [vars(sys.modules[name]) for name in modules if name in sys.modules]

    def arguments(self, row: PagedStep) -> dict[str, Any]:
        """What the model is given beside tokens."""
        cache = {self._cache_name: _StateCache(row, self._functions), "use_cache": True}
        positions = {"position_ids": row.long_positions.unsqueeze(0)}
        return {**cache, **(positions if self._takes_positions else {})}

    @contextmanager
    def calling_functions(self) -> Iterator[None]:
        """Has the model's source call ours. One engine thread a process: no lock."""
        found = [(source, name) for source in self._sources for name in _REPLACED if name in source]
        ours = [self._functions.in_place_of(name, source) for source, name in found]
        before = [source[name] for source, name in found]
        try:
            for (source, name), function in zip(found, ours, strict=True):
                source[name] = function
            yield
        finally:
            for (source, name), own in zip(found, before, strict=True):
                source[name] = own


class _StateCache(RowCache):
    """The cache as modules see it: nothing is in it, so that they compute all sequences in the same
    way; what they ask for says which state goes on next.
    """

    def __init__(self, row: PagedStep, functions: RowFunctions) -> None:
        super().__init__(row)
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
