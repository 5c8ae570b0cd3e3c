"""The preallocated cache of keys and values: its layout, its size from a stated budget, and copies
between slots.

One slot holds one sequence: per layer two tensors ``(slots, kv_heads, length, head_dim)``. A slot's
memory is reserved from the start, so a running sequence is never evicted. Knows no scheduler and no
attention.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from hf_runtime.errors import LoadError

from .slot_contents import SlotCopy

GIB = 2**30
_DEFAULT_NUM_SEQS = 128
# Without max_model_len: the model's own context length while 64 sequences of it fit, else 4,096.
_LONG_CONTEXT_NUM_SEQS, _DEFAULT_LONG_CONTEXT = 64, 4096
LEN_WITHOUT_LIMIT = 2048
# Of free memory. A CPU's is shared with other processes; a GPU's must leave room for activations.
FREE_SHARE = {"cpu": 0.5, "cuda": 0.9}


@dataclass(frozen=True)
class LayerShape:
    """What one layer keeps for a token, and where."""

    num_kv_heads: int
    key_dim: int
    value_dim: int
    dtype: torch.dtype
    device: torch.device

    @property
    def bytes_per_token(self) -> int:
        return self.num_kv_heads * (self.key_dim + self.value_dim) * self.dtype.itemsize


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


@torch.inference_mode()
def layer_shapes(model: Any, device: torch.device) -> list[LayerShape]:
    """Reads the cache's shape off the model itself: runs two tokens through it and looks at what it
    kept.

    Raises:
        ValueError: a layer keeps something else than one key and one value per token (recurrent
          models).
    """
    from transformers import DynamicCache

    cache = DynamicCache()
    tokens = torch.zeros(1, 2, dtype=torch.int64, device=device)
    model(input_ids=tokens, past_key_values=cache, use_cache=True)
    shapes = []
    for index, layer in enumerate(cache.layers):
        keys, values = getattr(layer, "keys", None), getattr(layer, "values", None)
        if (
            keys is None
            or values is None
            or keys.shape[:3] != values.shape[:3]
            or keys.shape[2] != 2
        ):
            raise ValueError(f"layer {index} does not keep one key and one value per token")
        shapes.append(
            LayerShape(keys.shape[1], keys.shape[3], values.shape[3], keys.dtype, keys.device)
        )
    if not shapes:
        raise ValueError("the model keeps no keys and values")
    return shapes


def spread_free_bytes(shapes: list[LayerShape], free_bytes: Callable[[torch.device], int]) -> int:
    """The free bytes for a cache of these layers; the device with the least room decides."""
    total = sum(shape.bytes_per_token for shape in shapes)
    usable = []
    for device in {shape.device for shape in shapes}:
        share = sum(shape.bytes_per_token for shape in shapes if shape.device == device) / total
        usable.append(free_bytes(device) / share)
    return int(min(usable))


def context_length(config: Any) -> int | None:
    """The most tokens the model was made for, or None where it has no such limit (ALiBi)."""
    for name in ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length"):
        value = getattr(config, name, None)
        if isinstance(value, int) and value > 0:
            return value
    return None


def stable_length(config: Any) -> int | None:
    """The most tokens before a longest sequence changes the rotary embedding of its whole batch
    (LongRoPE, https://arxiv.org/abs/2402.13753, as transformers computes it); None without that.
    """
    rope = getattr(config, "rope_parameters", None) or {}
    kinds = [rope] if "rope_type" in rope else rope.values()  # one for each kind of layer
    lengths = [
        kind.get("original_max_position_embeddings")
        for kind in kinds
        if isinstance(kind, dict) and kind.get("rope_type") == "longrope"
    ]
    return min((length for length in lengths if isinstance(length, int)), default=None)


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
    4,096 where 64 sequences of that length would not fit.

    Raises:
        LoadError: what was asked for does not fit, with all the numbers.
    """
    per_token = sum(shape.bytes_per_token for shape in shapes)
    share = FREE_SHARE[shapes[0].device.type]
    budget = int(kv_cache_gib * GIB) if kv_cache_gib is not None else int(free_bytes * share)
    length = max_model_len or model_limit or LEN_WITHOUT_LIMIT
    if model_limit is not None and length > model_limit:
        raise LoadError(
            f"max_model_len: got {length}, the model's own limit is {model_limit} tokens"
        )
    wanted = max_num_seqs or _DEFAULT_NUM_SEQS
    num_long = max_num_seqs or _LONG_CONTEXT_NUM_SEQS
    if max_model_len is None and num_long * length * per_token > budget:
        length = min(length, _DEFAULT_LONG_CONTEXT)
    fitting = budget // (length * per_token)
    if kv_cache_gib is not None and kv_cache_gib * GIB > free_bytes:
        raise LoadError(
            f"kv_cache_gib: got {kv_cache_gib:g}, but {free_bytes / GIB:.2f} GiB are free on "
            f"{shapes[0].device}"
        )
    if fitting < (max_num_seqs or 1):
        raise LoadError(
            _does_not_fit(wanted if max_num_seqs else 1, length, per_token, budget, kv_cache_gib)
        )
    num_slots = min(wanted, fitting)
    return CacheSize(num_slots, length, num_slots * length * per_token)


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
    num_seqs: int, length: int, per_token: int, budget: int, gib: float | None
) -> str:
    needed, fitting = num_seqs * length * per_token, budget // (length * per_token)
    source = (
        f"kv_cache_gib is {gib:g}" if gib is not None else f"{budget / GIB:.2f} GiB may be used"
    )
    return (
        f"the KV cache does not fit: {num_seqs} sequences (max_num_seqs) x {length} tokens "
        f"(max_model_len) x {per_token} bytes = {needed / GIB:.2f} GiB, but {source}, which holds "
        f"{fitting} sequences of that length or {budget // (num_seqs * per_token)} tokens each: "
        "lower one of them or raise kv_cache_gib"
    )


class KVCache:
    """Keys and values of all slots. ``keys[layer]`` is (slots, kv_heads, length, key_dim)."""

    def __init__(self, shapes: list[LayerShape], size: CacheSize) -> None:
        self.size = size
        self.keys: list[torch.Tensor] = []
        self.values: list[torch.Tensor] = []
        for shape in shapes:
            rows = (size.num_slots + size.num_prefix_slots, shape.num_kv_heads, size.max_model_len)
            self.keys.append(zeros((*rows, shape.key_dim), shape))
            self.values.append(zeros((*rows, shape.value_dim), shape))

    def copy_slots(self, copies: Iterable[SlotCopy]) -> None:
        """Copies slots as the scheduler says, in order."""
        for copy in copies:
            for stored in (*self.keys, *self.values):
                stored[copy.target, :, : copy.num_tokens] = stored[
                    copy.source, :, : copy.num_tokens
                ]


def zeros(size: tuple[int, ...], layer: LayerShape) -> torch.Tensor:
    """Zeros, because attention reads (and weighs with 0) columns that nobody wrote: NaN there would
    spread.

    On the CPU the pages come from calloc and are only taken from the machine when they are first
    written.
    """
    if layer.device.type != "cpu":
        return torch.zeros(size, dtype=layer.dtype, device=layer.device)
    pages = np.zeros(math.prod(size) * layer.dtype.itemsize, dtype=np.uint8)
    return torch.from_numpy(pages).view(layer.dtype).view(size)
