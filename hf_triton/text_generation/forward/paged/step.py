"""Lays out a step for a cache in pages: every number that the device needs, in one int32 buffer and
one copy.

All tokens of a step lie in one row: the decodes, one token each, then chunk after chunk, then draft
after draft. Knows nothing of models and attention.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import accumulate
from operator import is_
from typing import Any

import numpy as np
import torch

from hf_triton.text_generation.engine.step import Draft, PrefillChunk, Step
from hf_triton.text_generation.memory.paged_cache import PagedCache
from hf_triton.text_generation.sequence.sequence import Sequence

Int32s = np.ndarray[Any, np.dtype[np.int32]]
# Chunks of at least 48 tokens that attend to at least 256 are bound by computing, not by reading
# memory: there SDPA's blocked matrix products are faster than a loop.
LONG_CHUNK, LONG_PREFIX = 48, 256
_FIELDS = (
    *("token_ids", "positions", "sequences"),
    *("starts", "key_starts", "lengths", "slots", "last", "block_table"),
)


@dataclass(frozen=True)
class StepShape:
    """Sizes of a step's buffer, with padding: ``num_tokens`` of ``num_seqs`` sequences of at most
    ``most_pages`` pages, ``num_last`` of which give logits.
    """

    num_tokens: int
    num_seqs: int
    num_last: int
    most_pages: int

    @property
    def sizes(self) -> dict[str, int]:
        tokens, seqs = self.num_tokens, self.num_seqs
        counts = (*[tokens] * 3, seqs + 1, seqs + 1, seqs, seqs, self.num_last)
        return dict(zip(_FIELDS, (*counts, seqs * self.most_pages), strict=True))

    def views(self, buffer: Any) -> dict[str, Any]:
        """buffer (size,), of torch or numpy -> views of its parts by name."""
        sizes = self.sizes
        ends = list(accumulate(sizes.values()))
        parts = {
            name: buffer[end - size : end]
            for (name, size), end in zip(sizes.items(), ends, strict=True)
        }
        table = parts["block_table"].reshape(self.num_seqs, self.most_pages)
        return {**parts, "block_table": table}


@dataclass
class PagedStep:
    """The place of each token of a step. All tensors are int32 on one device.

    ``token_ids``, ``positions`` and ``sequences`` are (num_tokens,).
    Sequence ``i`` has the tokens ``starts[i] .. starts[i + 1] - 1`` and attends to ``lengths[i]``
    tokens, its own of this step included, which lie in the pages ``block_table[i]``, (num_seqs,
    most_pages), 0 behind its last. ``key_starts`` (num_seqs + 1,) are sums of the lengths before.
    Its states lie in row ``slots[i]`` of their tables, padding's in row 0. ``last`` are the tokens
    whose logits are wanted.

    ``max_query_len`` is the most tokens of a sequence, or more.
    """

    cache: PagedCache
    token_ids: torch.Tensor
    positions: torch.Tensor
    sequences: torch.Tensor
    starts: torch.Tensor
    key_starts: torch.Tensor
    lengths: torch.Tensor
    slots: torch.Tensor
    last: torch.Tensor
    block_table: torch.Tensor
    max_query_len: int
    chunks: Items[PrefillChunk | Draft] = ()  # on the host; of a captured step, none
    layers: set[int] = field(default_factory=set)  # that were written
    kept: dict[object, Any] = field(default_factory=dict)  # what layers keep until the step ends

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def most_keys(self) -> int:
        """The most tokens that a sequence may attend to; known without the device."""
        return self.block_table.shape[1] * self.cache.size.page_size

    @cached_property
    def on_host(self) -> tuple[list[int], list[int]]:
        """``starts`` and ``lengths``; of a captured step, the host waits for them."""
        return self.starts.tolist(), self.lengths.tolist()

    @cached_property
    def long_rows(self) -> torch.Tensor:
        """(num_tokens,) int64: ``page * page size + offset``, where a token's key and value go."""
        positions, size = self.long_positions, self.cache.size.page_size
        pages = self.block_table[self.sequences.long(), positions // size]
        return pages * size + positions % size

    @cached_property
    def addresses(self) -> tuple[int, ...]:
        numbers = self.sequences, self.positions, self.block_table
        return tuple(one.data_ptr() for one in numbers)

    @cached_property
    def stretches(self) -> list[tuple[int, int, int | None]]:
        """(first, end, None) of its tokens, cut by (first, end, sequence) of long chunks."""
        starts, lengths = self.on_host
        found, done = list[tuple[int, int, int | None]](), 0
        for sequence, length in enumerate(lengths):
            start, end = starts[sequence : sequence + 2]
            if end - start >= LONG_CHUNK and length >= LONG_PREFIX:
                found += [(done, start, None), (start, end, sequence)]
                done = end
        return [one for one in (*found, (done, starts[-1], None)) if one[0] < one[1]]

    @cached_property
    def long_positions(self) -> torch.Tensor:
        return self.positions.long()

    @cached_property
    def long_slots(self) -> torch.Tensor:
        return self.slots.long()

    @cached_property
    def begins(self) -> torch.Tensor:
        """(num_seqs,) bool: sequences that are padding, or of one token."""
        return self.lengths <= 1

    @property
    def num_decodes(self) -> int:
        """The number of sequences before those of ``chunks``, padding included."""
        return len(self.lengths) - len(self.chunks)

    def write(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        """Stores (1, kv_heads, num_tokens, dim) of both in a layer of the cache."""
        for stored, states in ((self.cache.keys[layer], key), (self.cache.values[layer], value)):
            rows = self.on(stored.device).long_rows
            stored.flatten(0, 1).index_copy_(0, rows, states[0].transpose(0, 1))
        self.kept["written"] = key, layer
        self.layers.add(layer)

    def keep(self, key: torch.Tensor, layer: int) -> None:
        """Lets ``layer_of`` find the key until the step ends."""
        self.kept[id(key)] = key, layer  # with the key, so that no other tensor has its id

    def layer_of(self, key: torch.Tensor) -> int | None:
        """The layer of the key, if it was written last or is kept."""
        kept, layer = self.kept.get(id(key)) or self.kept.get("written", (None, None))
        return layer if kept is key else None

    def blocks_of(self, sequence: int) -> list[tuple[int, int]]:
        """The (first token, end) within which tokens of a sequence's chunk see each other."""
        number = sequence - self.num_decodes
        encoded = self.chunks[number].sequence.encoded if number >= 0 else None
        return [] if encoded is None else list(encoded.blocks)

    @property
    def has_blocks(self) -> bool:
        return any(map(self.blocks_of, range(self.num_decodes, len(self.lengths))))

    def of_tokens(self, tokens: torch.Tensor) -> PagedStep:
        """The step for attention of the given tokens (tokens,) int64 alone."""
        sequences, positions = self.sequences[tokens], self.positions[tokens]
        step = replace(self, sequences=sequences, positions=positions, kept={})
        step.stretches = [(0, len(tokens), None)]
        return step

    def on(self, device: torch.device) -> PagedStep:
        if device == self.block_table.device:
            return self
        if device not in self.kept:
            moved = {name: getattr(self, name).to(device) for name in _FIELDS}
            there = PagedStep(self.cache, **moved, max_query_len=self.max_query_len)
            there.on_host, there.chunks = self.on_host, self.chunks
            self.kept[device] = there
        found: PagedStep = self.kept[device]
        return found


def lay_out_pages(
    step: Step,
    cache: PagedCache,
    device: torch.device,
    shape: StepShape | None = None,
    into: torch.Tensor | None = None,
) -> PagedStep:
    """Lays out a step in a buffer of its own size, or of ``shape`` for decodes alone, and copies it
    to the device or ``into`` a buffer there; the host does not wait. Padding is sequences of one
    token, the id 0 in row 0 of page 0.

    torch gives pinned memory out again only when copies from it are done:
    https://docs.pytorch.org/docs/stable/notes/cuda.html#use-pinned-memory-buffers.
    """
    chunks, sequences = step.chunks, step.sequences
    counts = [1] * len(step.decodes) + [chunk.end - chunk.start for chunk in chunks]
    lengths = [sequence.num_computed_tokens for sequence in step.decodes]
    lengths += [chunk.end for chunk in chunks]
    seqs, tokens, num_last = len(sequences), sum(counts), len(step.all_rows)
    shape = shape or StepShape(
        tokens, seqs, num_last, max((len(sequence.pages) for sequence in sequences), default=0)
    )
    size = sum(shape.sizes.values())
    is_pinned = device.type == "cuda" and torch.cuda.is_initialized()
    buffer = torch.zeros(size, dtype=torch.int32, pin_memory=is_pinned)
    parts: dict[str, Int32s] = shape.views(buffer.numpy())

    num_padded = shape.num_seqs - seqs
    np.cumsum(counts + [1] * num_padded, out=parts["starts"][1:])
    parts["lengths"][:] = lengths + [1] * num_padded
    np.cumsum(parts["lengths"], out=parts["key_starts"][1:])
    parts["slots"][:seqs] = [sequence.slot for sequence in sequences]
    pages = np.frombuffer(b"".join(sequence.pages for sequence in sequences), dtype=np.int32)
    num_pages = np.fromiter((len(sequence.pages) for sequence in sequences), np.int32)
    table = parts["block_table"]
    table[:seqs][np.arange(table.shape[1]) < num_pages[:, None]] = pages
    parts["token_ids"][:tokens] = _token_ids(step)
    starts = parts["starts"][: seqs + 1]
    first = np.array(lengths, np.int32) - np.array(counts, np.int32) - starts[:-1]
    parts["positions"][:tokens] = np.arange(tokens) + np.repeat(first, counts)
    parts["sequences"][:] = np.repeat(np.arange(shape.num_seqs), counts + [1] * num_padded)
    num_drafted = sum(len(draft.token_ids) for draft in step.drafts)
    ends = starts[1 : seqs - len(step.drafts) + 1] - 1
    is_sampled = [True] * len(step.decodes) + [chunk.is_last for chunk in step.prefills]
    drafted = np.arange(tokens - num_drafted, tokens, dtype=np.int32)
    scored = [
        np.arange(chunk.scored.start, chunk.scored.stop, dtype=np.int32) - chunk.start + first
        for chunk, first in zip(step.prefills, starts[len(step.decodes) :], strict=False)
    ]
    parts["last"][:num_last] = np.concatenate([ends[is_sampled], drafted, *scored])
    if into is None:
        buffer = buffer.to(device, non_blocking=True)
    else:
        buffer = into[:size].copy_(buffer, non_blocking=True)
    placed = PagedStep(cache, **shape.views(buffer), max_query_len=max(counts))
    placed.on_host, placed.chunks = (starts.tolist(), lengths), chunks
    return placed


class Decodes:
    """A CPU's steps of decodes alone in one buffer: for the same sequences only changes are
    written.
    """

    _MORE_PAGES = 8  # of each sequence there is room for

    def __init__(self, step: Step, cache: PagedCache) -> None:
        self._pages, self._num_pages = _pages_of(step.decodes)
        num = len(step.decodes)
        shape = StepShape(num, num, num, max(self._num_pages) + self._MORE_PAGES)
        self.step = lay_out_pages(step, cache, torch.device("cpu"), shape)
        tensors = {name: getattr(self.step, name) for name in _FIELDS}
        self._parts = {name: tensor.numpy() for name, tensor in tensors.items()}
        self._next_step = partial(PagedStep, cache, **tensors, max_query_len=1)

    def go_on(self, step: Step) -> bool:
        """Lays out a step of the same sequences; False for another one."""
        pages, num_pages = _pages_of(step.decodes)
        # A sequence that was taken out and came back has another array of pages.
        if len(pages) != len(self._pages) or not all(map(is_, pages, self._pages)):
            return False
        parts, table = self._parts, self._parts["block_table"]
        if num_pages != self._num_pages:
            if max(num_pages) > table.shape[1]:
                return False
            for row, num in enumerate(num_pages):
                if num != self._num_pages[row]:
                    table[row, :num] = pages[row]
            self._num_pages = num_pages
        lengths = [sequence.num_computed_tokens for sequence in step.decodes]
        parts["lengths"][:] = lengths
        np.subtract(parts["lengths"], 1, out=parts["positions"])
        np.cumsum(parts["lengths"], out=parts["key_starts"][1:])
        parts["token_ids"][:] = [sequence.last_token_id for sequence in step.decodes]
        starts, _ = self.step.on_host
        self.step = self._next_step()
        self.step.on_host = starts, lengths
        return True


def _pages_of(decodes: list[Sequence]) -> tuple[list[Any], list[int]]:
    pages = [sequence.pages for sequence in decodes]
    return pages, [len(one) for one in pages]


def _token_ids(step: Step) -> list[int]:
    ids = [sequence.last_token_id for sequence in step.decodes]
    for chunk in step.prefills:
        ids += chunk.sequence.tokens(chunk.start, chunk.end)
    for draft in step.drafts:
        ids += draft.token_ids
    return ids
