"""The preallocated cache of keys, values and states: its layout, its size from a stated budget, and
copies between slots.

One slot holds one sequence: per layer two tensors ``(slots, kv_heads, length, head_dim)``, and what
else the layer keeps. A slot's memory is reserved from the start, so a running sequence is never
evicted. Knows no scheduler and no attention.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hf_triton.runtime.errors import LoadError

from ..options import FREE_SHARE
from .layer_shapes import LayerShape, StateShape, sequence_bytes
from .slot_contents import SlotCopy

GIB = 2**30
_DEFAULT_NUM_SEQS = 128
# Without max_model_len the model's own context length, for fewer sequences where that needs it; but
# what these hold of it, or so many tokens, where not even these fit.
_FEWEST_SEQS, _LEAST_CONTEXT = 8, 4096
LEN_WITHOUT_LIMIT = 2048
_BEGUN = ("conv", "recurrent", "own", "cross")  # kinds of states


@dataclass(frozen=True)
class CacheSize:
    """How many sequences of how many tokens the cache holds, and what that takes."""

    num_slots: int
    max_model_len: int
    num_bytes: int
    num_prefix_slots: int = 0  # more, in which no sequence runs

    @property
    def max_num_seqs(self) -> int:
        return self.num_slots

    @property
    def gib(self) -> float:
        return self.num_bytes / GIB


def spread_free_bytes(
    shapes: list[LayerShape], num_tokens: int, free_bytes: Callable[[torch.device], int]
) -> int:
    """The free bytes for a cache of these layers and sequences of ``num_tokens``; the device with
    the least room decides.
    """
    usable = []
    for device in {shape.device for shape in shapes}:
        own = sequence_bytes([shape for shape in shapes if shape.device == device], num_tokens)
        if own:
            usable.append(free_bytes(device) * sequence_bytes(shapes, num_tokens) / own)
    return int(min(usable))


def context_length(config: Any) -> int | None:
    """The most tokens the model was made for, or None where it has no such limit (ALiBi)."""
    names = ["max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length"]
    if not getattr(config, "is_encoder_decoder", False):
        names.append("max_target_positions")  # Whisper's decoder alone
    for name in names:
        value = getattr(config, name, None)
        if isinstance(value, int) and value > 0:
            return value
    return None


def plan_size(
    shapes: list[LayerShape],
    *,
    model_limit: int | None,
    max_model_len: int | None,
    max_num_seqs: int | None,
    kv_cache_gib: float | None,
    free_bytes: int,
) -> CacheSize:
    """Chooses slots and length: what was asked for, or the most that the budget holds.

    ``kv_cache_gib`` is the budget where it is given, else a share of ``free_bytes``. Without
    ``max_num_seqs`` it is 128 or what fits; without ``max_model_len`` it is the model's limit, or
    what 8 sequences hold, at least 4,096, where as many of that length would not fit.

    Raises:
        LoadError: what was asked for does not fit, with all the numbers.
    """
    share = FREE_SHARE[shapes[0].device.type]
    budget = int(kv_cache_gib * GIB) if kv_cache_gib is not None else int(free_bytes * share)
    length = max_model_len or model_limit or LEN_WITHOUT_LIMIT
    if model_limit is not None and length > model_limit:
        raise LoadError(
            f"max_model_len: got {length}, the model's own limit is {model_limit} tokens"
        )
    wanted = max_num_seqs or _DEFAULT_NUM_SEQS
    if max_model_len is None:
        longest = _longest(shapes, budget // (max_num_seqs or _FEWEST_SEQS))
        length = min(length, max(longest, _LEAST_CONTEXT))
    slot_bytes = sequence_bytes(shapes, length)
    fitting = budget // slot_bytes
    if kv_cache_gib is not None and kv_cache_gib * GIB > free_bytes:
        raise LoadError(
            f"kv_cache_gib: got {kv_cache_gib:g}, but {free_bytes / GIB:.2f} GiB are free on "
            f"{shapes[0].device}"
        )
    if fitting < (max_num_seqs or 1):
        raise LoadError(
            _does_not_fit(wanted if max_num_seqs else 1, length, shapes, budget, kv_cache_gib)
        )
    num_slots = min(wanted, fitting)
    return CacheSize(num_slots, length, num_slots * slot_bytes)


def _longest(shapes: list[LayerShape], num_bytes: int) -> int:
    """The most tokens of a sequence that so many bytes hold, roughly; in steps that look round."""
    fixed = sequence_bytes(shapes, 0)
    per_token = max(1, sequence_bytes(shapes, 1) - fixed)
    return max(0, num_bytes - fixed) // per_token // 256 * 256


def prefix_slots(size: CacheSize, prefix_cache_gib: float, free_bytes: int) -> CacheSize:
    """The size with as many slots for prefixes alone as the budget holds.

    Raises:
        LoadError: it holds none, or is not there.
    """
    slot_bytes = size.num_bytes // size.num_slots
    count = int(prefix_cache_gib * GIB) // slot_bytes
    if not count:
        raise LoadError(
            f"prefix_cache_gib: got {prefix_cache_gib:g}, but one sequence of {size.max_model_len} "
            f"tokens takes {slot_bytes / GIB:.3g} GiB"
        )
    num_bytes = size.num_bytes + count * slot_bytes
    if num_bytes > free_bytes:
        raise LoadError(
            f"prefix_cache_gib: got {prefix_cache_gib:g}, but {free_bytes / GIB:.2f} GiB are free "
            f"and the cache of those that run takes {size.gib:.2f}"
        )
    return CacheSize(size.num_slots, size.max_model_len, num_bytes, count)


def _does_not_fit(
    num_seqs: int, length: int, shapes: list[LayerShape], budget: int, gib: float | None
) -> str:
    slot_bytes = sequence_bytes(shapes, length)
    fixed = sequence_bytes(shapes, 0)
    per_token = sequence_bytes(shapes, 1) - fixed
    one = f"{length} tokens (max_model_len) x {per_token} bytes"
    if fixed:
        one = f"({one} + {fixed} bytes of states)"
    holds = f"{budget // slot_bytes} sequences of that length"
    if per_token:
        shorter = max(0, budget // num_seqs - fixed) // per_token
        holds += f" or {shorter} tokens each"
    source = (
        f"kv_cache_gib is {gib:g}" if gib is not None else f"{budget / GIB:.2f} GiB may be used"
    )
    return (
        f"the KV cache does not fit: {num_seqs} sequences (max_num_seqs) x {one} = "
        f"{num_seqs * slot_bytes / GIB:.2f} GiB, but {source}, which holds {holds}: "
        "lower one of them or raise kv_cache_gib"
    )


class KVCache:
    """What all slots hold, layer by layer: ``keys`` (slots, kv_heads, length, key_dim) and
    ``values`` alike, ``indexer_keys`` (slots, length, dim), and ``states``, those of ``shapes``
    (slots, ...). What a layer does not keep is empty. ``source_lengths``: of each slot, how much of
    its keys and values of an encoder's source is there.
    """

    def __init__(self, shapes: list[LayerShape], size: CacheSize) -> None:
        self.size, self.shapes = size, shapes
        self.keys: list[torch.Tensor] = []
        self.values: list[torch.Tensor] = []
        self.indexer_keys: list[torch.Tensor] = []
        self.states: list[list[torch.Tensor]] = []
        num_slots, length = size.num_slots + size.num_prefix_slots, size.max_model_len
        for shape in shapes:
            rows = (num_slots, shape.num_kv_heads, length)
            self.keys.append(zeros((*rows, shape.key_dim), shape))
            self.values.append(zeros((*rows, shape.value_dim), shape))
            indexed = (num_slots, length, shape.indexer_dim)
            self.indexer_keys.append(zeros(indexed, shape, shape.indexer_dtype))
            self.states.append(
                [
                    zeros((num_slots, *state.shape_for(length)), shape, state.dtype)
                    for state in shape.states
                ]
            )
        self.source_lengths = [0] * num_slots
        self._by_token = [
            *(stored.transpose(1, 2) for stored in (*self.keys, *self.values) if stored.numel()),
            *(stored for stored in self.indexer_keys if stored.numel()),
        ]

    def copy_slots(self, copies: Iterable[SlotCopy]) -> None:
        """Copies and clears slots as the scheduler says, in order; states whole."""
        for copy in copies:
            if copy.source != copy.target:
                self.copy_tokens(copy)
                self._copy_states(copy)
            for stored in self._by_token if copy.num_written > copy.num_tokens else ():
                stored[copy.target, copy.num_tokens : copy.num_written] = 0
            if not copy.num_tokens:
                self._clear_states(copy)

    def begin_source(self, slot: int, length: int) -> None:
        """A sequence's source of so many tokens is to be written: clears what lies behind them."""
        num_written, self.source_lengths[slot] = self.source_lengths[slot], length
        for stored, state in self._each_state() if num_written > length else ():
            if state.kind == "cross":
                stored[slot, :, length:num_written] = 0

    def copy_tokens(self, copy: SlotCopy) -> None:
        """Copies what slots keep of each token, without states."""
        for stored in self._by_token:  # (slots, length, ...)
            stored[copy.target, : copy.num_tokens] = stored[copy.source, : copy.num_tokens]

    def _copy_states(self, copy: SlotCopy) -> None:
        num_read = self.source_lengths[copy.source]
        self.begin_source(copy.target, num_read)
        for stored, state in self._each_state():
            if state.kind == "cross":
                stored[copy.target, :, :num_read] = stored[copy.source, :, :num_read]
            else:
                stored[copy.target] = stored[copy.source]

    def _clear_states(self, copy: SlotCopy) -> None:
        """Clears the states of a sequence that begins which no runner begins by itself."""
        for stored, state in self._each_state():
            if state.kind not in _BEGUN:
                num_written = -(-copy.num_written // state.per) if state.per else None
                stored[copy.target][:num_written] = 0

    def _each_state(self) -> Iterator[tuple[torch.Tensor, StateShape]]:
        for layer, shape in zip(self.states, self.shapes, strict=True):
            yield from zip(layer, shape.states, strict=True)


def zeros(
    size: tuple[int, ...], layer: LayerShape, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """Zeros of the layer's dtype or another, because attention reads (and weighs with 0) columns
    that nobody wrote: NaN there would spread.

    On the CPU the pages come from calloc and are only taken from the machine when they are first
    written.
    """
    dtype = dtype or layer.dtype
    if layer.device.type != "cpu" or not math.prod(size):
        return torch.zeros(size, dtype=dtype, device=layer.device)
    pages = np.zeros(math.prod(size) * dtype.itemsize, dtype=np.uint8)
    return torch.from_numpy(pages).view(dtype).view(size)
