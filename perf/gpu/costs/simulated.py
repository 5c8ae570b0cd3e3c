"""The engine's own scheduler under clients in a closed loop, without a model: what its steps
compute, read and copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import torch
from text_generation.engine.scheduler import Scheduler
from text_generation.engine.step import Step
from text_generation.in_flight.step_tokens import max_num_batched_tokens
from text_generation.in_flight.warm_up import dummy_sequence
from text_generation.kv.kv_cache import CacheSize, plan_size
from text_generation.kv.layer_shapes import LayerShape
from text_generation.kv.paged_cache import PagedSize, plan_pages
from text_generation.kv.pages import PAGE_SIZE, Pages, num_pages_of
from text_generation.kv.slot_contents import SlotContents
from text_generation.options import Options
from text_generation.paged.graphs import MOST_TOKENS, token_counts
from text_generation.sequence.sampling_params import SamplingParams
from text_generation.sequence.sequence import Sequence, Token

from perf.gpu.costs.assumed import CONTEXT_GIB, Card, Decoder, Design
from perf.gpu.sections.closed_loop import requests

MEAN_TOKENS = 370  # of a request of the load, when it ends
_GIB = 2**30
_PADDED_TO, _SHORTEST_GRAPH = 32, 256  # columns of slots, and of their shortest graph
_SMALL_GRAPHS, _GRAPH_STEP = (1, 2, 4, 8), 16  # rows
_SLOTS_NUM_BATCHED_TOKENS = 512
_DEVICE = torch.device("cuda")


@dataclass(frozen=True)
class Work:
    """What one step does, in tokens; ``read`` and ``needed`` are of keys."""

    num_sampled: int
    num_tokens: int  # computed, with what pads a graph
    num_chunks: int
    read: int
    needed: int
    is_replayed: bool
    num_new_shapes: int = 0  # of attention, where no graph is replayed
    copied: tuple[int, ...] = ()  # between slots


def room(decoder: Decoder, card: Card, design: Design) -> CacheSize | PagedSize:
    """The cache as the engine sizes it by default. Raises LoadError where nothing fits."""
    dim = decoder.head_dim
    shape = LayerShape(decoder.num_kv_heads, dim, dim, torch.bfloat16, _DEVICE)
    asked: dict[str, Any] = {
        "model_limit": decoder.context,
        "max_model_len": None,
        "max_num_seqs": None,
        "kv_cache_gib": None,
    }
    free = int((card.memory_gib - CONTEXT_GIB) * _GIB - decoder.weight_bytes)
    shapes = [shape] * decoder.num_layers
    if design.has_pages:
        left = free - int(card.step_gib * _GIB)
        return plan_pages(shapes, **asked, prefix_cache_gib=None, free_bytes=left)
    return plan_size(shapes, **asked, free_bytes=free)


def num_fitting(size: CacheSize | PagedSize) -> int:
    """How many sequences of MEAN_TOKENS it holds at once."""
    if isinstance(size, CacheSize):
        return size.num_slots
    return (size.num_pages - 1) // num_pages_of(MEAN_TOKENS)


def steps(
    decoder: Decoder, card: Card, design: Design, clients: int, number: int
) -> Iterator[Work]:
    """The last three quarters of so many steps."""
    size, asked = room(decoder, card, design), requests(0)
    scheduler, of = _in_slots(size) if isinstance(size, CacheSize) else _in_pages(size, card)

    def new(count: int) -> list[Sequence]:
        return [
            dummy_sequence(one.prompt, SamplingParams(one.max_tokens))
            for one in islice(asked, count)
        ]

    scheduler.add(new(clients))
    for at in range(number):
        step = scheduler.schedule()
        work = of(step)
        for sequence in step.sampled:
            sequence.append(Token(at), frozenset())
        ended = [sequence for sequence in step.sampled if sequence.finish_reason]
        copies = (*step.copies, *scheduler.retire(ended))
        scheduler.add(new(len(ended)))
        if at >= number // 4:
            yield replace(work, copied=tuple(copy.num_tokens for copy in copies))


def _in_slots(size: CacheSize) -> tuple[Scheduler, Callable[[Step], Work]]:
    space = SlotContents(size.num_slots, 0, size.num_slots)
    return Scheduler(size.num_slots, _SLOTS_NUM_BATCHED_TOKENS, space), _SlotWork(size)


def _in_pages(size: PagedSize, card: Card) -> tuple[Scheduler, Callable[[Step], Work]]:
    def total_bytes(_: torch.device) -> int:
        return int(card.memory_gib * _GIB)

    number = max_num_batched_tokens(Options(), _DEVICE, total_bytes, size.max_num_seqs)
    return Scheduler(size.max_num_seqs, number, Pages(size.num_pages)), _PagedWork(number)


class _PagedWork:
    """What a step in pages does: attention reads whole pages, graphs hold up to so many tokens."""

    def __init__(self, max_num_batched_tokens: int) -> None:
        self._sizes = token_counts(1, min(max_num_batched_tokens, MOST_TOKENS))

    def __call__(self, step: Step) -> Work:
        ends = [one.num_computed_tokens for one in step.decodes]
        ends += [chunk.end for chunk in step.prefills]
        padded = next((size for size in self._sizes if size >= step.num_tokens), None)
        return Work(
            num_sampled=len(step.sampled),
            num_tokens=padded or step.num_tokens,
            num_chunks=len(step.prefills),
            read=sum(num_pages_of(end) * PAGE_SIZE for end in ends),
            needed=sum(ends),
            is_replayed=padded is not None,
        )


class _SlotWork:
    """What a step in slots does: decodes read rows as long as the longest, of a graph's bucket;
    each prompt is attended to by itself.
    """

    def __init__(self, size: CacheSize) -> None:
        self._size = size
        self._shapes: set[tuple[int, int]] = set()

    def __call__(self, step: Step) -> Work:
        ends = [one.num_computed_tokens for one in step.decodes]
        chunks = [(chunk.end - chunk.start, chunk.end) for chunk in step.prefills]
        is_replayed, rows = not chunks, len(ends)
        columns = -(-max(ends, default=0) // _PADDED_TO) * _PADDED_TO
        if is_replayed:
            small = next((number for number in _SMALL_GRAPHS if number >= rows), None)
            rows = small or -(-rows // _GRAPH_STEP) * _GRAPH_STEP
            rows = min(rows, self._size.num_slots)
            columns = _SHORTEST_GRAPH
            while columns < max(ends):
                columns *= 2
            columns = min(columns, self._size.max_model_len)
        shapes = {*chunks, *([(-len(ends), columns)] if ends else [])} if chunks else set()
        num_new = len(shapes - self._shapes)
        self._shapes |= shapes
        attended = sum(end for _, end in chunks)
        return Work(
            num_sampled=len(step.sampled),
            num_tokens=rows + sum(length for length, _ in chunks),
            num_chunks=len(chunks),
            read=rows * columns + attended,
            needed=sum(ends) + attended,
            is_replayed=is_replayed,
            num_new_shapes=num_new,
        )
