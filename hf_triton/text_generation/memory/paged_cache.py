"""The cache of keys and values in pages: its layout, and its size from a stated budget.

Per layer two tensors ``(pages, page size, kv_heads, dim)``, as vLLM and FlashAttention lay them
out; on a CPU the numbers of a head lie together, so that consecutive pages are read as one. States,
which don't grow with a sequence, lie in tables: a row for each that may run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from itertools import chain

import numpy as np
import torch

from hf_triton.runtime.errors import LoadError

from ..options import FREE_SHARE, Options
from .layer_shapes import LEN_WITHOUT_LIMIT, LayerShape, sequence_bytes
from .pages import GIB, PAGE_SIZES, PagedSize, StateCopy, num_pages_of

_DEFAULT_NUM_SEQS = {"cpu": 128, "cuda": 512}
# On a CPU memory is taken when it is first written, and what ended sequences leave would soon fill
# all that may be used: without a stated budget they keep this share of it.
_KEPT_SHARE = 1 / 4
_FAIR_LENGTH = 4096  # tokens for each sequence with states, if max_num_seqs is not set


def spread_free_bytes(
    shapes: list[LayerShape], num_tokens: int, free_bytes: Callable[[torch.device], int]
) -> int:
    """The free bytes for a cache of these layers; the device with the least room decides."""
    usable = []
    for device in {shape.device for shape in shapes}:
        own = sequence_bytes([shape for shape in shapes if shape.device == device], num_tokens)
        if own:
            usable.append(free_bytes(device) * sequence_bytes(shapes, num_tokens) / own)
    return int(min(usable))


def plan_pages(
    shapes: list[LayerShape],
    options: Options,
    model_limit: int | None,
    free_bytes: Callable[[torch.device], int],
) -> PagedSize:
    """Pages for ``kv_cache_gib``, else for ``max_num_seqs`` sequences of full length, at most a
    share of the free bytes. ``max_model_len`` is by default the model's limit, or what the pages
    hold; ``max_num_seqs`` 512 (on a CPU 128), at most a sequence for each page; with states, as
    many as find room with 4,096 tokens each. Raises LoadError where it does not fit.
    """
    max_model_len, max_num_seqs = options.max_model_len, options.max_num_seqs
    kv_cache_gib, device = options.kv_cache_gib, shapes[0].device
    page_size = PAGE_SIZES[device.type]
    per_page = page_size * sum(shape.bytes_per_token for shape in shapes)
    length = max_model_len or model_limit or LEN_WITHOUT_LIMIT
    if model_limit is not None and length > model_limit:
        raise LoadError(
            f"max_model_len: got {length}, the model's own limit is {model_limit} tokens"
        )
    free = spread_free_bytes(shapes, length, free_bytes)
    if kv_cache_gib is not None and kv_cache_gib * GIB > max(0, free):
        found = f"{free / GIB:.2f} GiB are free on {device}"
        raise LoadError(f"kv_cache_gib: got {kv_cache_gib:g}, but {found}")
    share = FREE_SHARE[device.type]
    budget = int(free * share) if kv_cache_gib is None else int(kv_cache_gib * GIB)
    wanted = max_num_seqs or _DEFAULT_NUM_SEQS[device.type]
    states, most_kept = sum(shape.state_bytes for shape in shapes), None
    if states:
        fair = sequence_bytes(shapes, min(length, _FAIR_LENGTH))
        wanted = max_num_seqs or max(1, min(wanted, (budget - states) // fair))
    state_bytes = (1 + wanted) * states  # row 0 is padding's
    num_usable = wanted * num_pages_of(length, page_size)
    if per_page:
        num_usable = max(0, budget - state_bytes) // per_page - 1  # page 0 is padding's
    if max_model_len is None:
        length = min(length, max(page_size, num_usable * page_size))
    num_needed = max(num_pages_of(length, page_size), max_num_seqs or 1)
    if num_usable < num_needed or state_bytes > budget:
        wants = f"one sequence of {length} tokens (max_model_len) takes "
        wants += str(num_pages_of(length, page_size))
        if max_num_seqs:
            wants += f" and max_num_seqs is {max_num_seqs}"
        num_usable = max(0, num_usable)
        source = "the free memory" if kv_cache_gib is None else f"kv_cache_gib {kv_cache_gib:g}"
        beside = f" beside {states} bytes of states for each sequence" if states else ""
        raise LoadError(
            f"the KV cache does not fit: {wants}, but {source} holds {num_usable} pages of "
            f"{page_size} tokens ({per_page} bytes each){beside}, {num_usable * page_size} tokens: "
            "lower one of them or raise kv_cache_gib"
        )
    if kv_cache_gib is None and per_page:
        num_usable = min(num_usable, wanted * num_pages_of(length, page_size))
        if device.type == "cpu":
            most_kept = int(num_usable * _KEPT_SHARE)
    return PagedSize(
        num_pages=num_usable + 1,
        max_model_len=length,
        max_num_seqs=min(wanted, num_usable),
        num_bytes=(num_usable + 1) * per_page + state_bytes,
        page_size=page_size,
        most_kept=most_kept,
    )


class PagedCache:
    """Tensors on each layer's device: ``keys[layer]`` (num_pages, page size, kv_heads, key_dim),
    ``values[layer]`` alike, and the tables ``states[layer]``, (1 + rows, ...) each, row 0
    padding's. ``source_lengths``: how much of each row's encoder source is there.
    """

    def __init__(self, shapes: list[LayerShape], size: PagedSize) -> None:
        self.size, self.shapes = size, shapes
        self.keys = [_pages(shape, size, shape.key_dim) for shape in shapes]
        self.values = [_pages(shape, size, shape.value_dim) for shape in shapes]
        num_rows = 1 + size.max_num_seqs
        self.states = [
            [zeros((num_rows, *state.shape), shape, state.dtype) for state in shape.states]
            for shape in shapes
        ]
        self.source_lengths = [0] * num_rows

    def copy(self, copies: Iterable[StateCopy]) -> None:
        """Copies states and pages in this order."""
        for copy in copies:
            for stored in chain(*self.states) if copy.source != copy.target else ():
                stored[copy.target] = stored[copy.source]
            if copy.page is not None:
                source, target = copy.page
                for pages in (*self.keys, *self.values):
                    pages[target] = pages[source]

    def begin_source(self, row: int, length: int) -> None:
        """Clears what an earlier, longer source of this row left beyond ``length`` tokens."""
        num_written, self.source_lengths[row] = self.source_lengths[row], length
        for stored in chain(*self.states) if num_written > length else ():
            stored[row, :, length:num_written] = 0


def _pages(shape: LayerShape, size: PagedSize, dim: int) -> torch.Tensor:
    """(pages, page size, kv_heads, dim)."""
    pages, heads = (size.num_pages, size.page_size), shape.num_kv_heads
    if shape.device.type == "cpu":
        return zeros((heads, *pages, dim), shape).permute(1, 2, 0, 3)
    return zeros((*pages, heads, dim), shape)


def zeros(
    size: tuple[int, ...], layer: LayerShape, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """Attention reads columns that nobody wrote, with weight 0: NaN there would spread. On the CPU
    calloc takes pages from the machine when they are first written.
    """
    dtype = dtype or layer.dtype
    if layer.device.type != "cpu" or not math.prod(size):
        return torch.zeros(size, dtype=dtype, device=layer.device)
    pages = np.zeros(math.prod(size) * dtype.itemsize, dtype=np.uint8)
    return torch.from_numpy(pages).view(dtype).view(size)
