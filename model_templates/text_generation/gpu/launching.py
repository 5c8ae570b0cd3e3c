"""Launches kernels: on a GPU as OpenAI Triton compiles them, on a CPU in its interpreter.

How a kernel is launched follows from shapes and the device alone, never from what a step holds, so
that a launch can be captured in a CUDA graph. The tiles were chosen so that no kernel spills
registers or takes more shared memory than a card has (tests/gpu/kernels/test_compiled.py).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from hf_runtime.private_folders import private_folders

from ..kv.pages import PAGE_SIZE

_MOST_SPLITS = 32
_NUM_STAGES = 3  # page numbers are loaded two tiles ahead, keys and values one


class AttentionShape(NamedTuple):
    """Of a layer, and the size of its numbers in bytes."""

    heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    itemsize: int

    @property
    def group(self) -> int:
        """Query heads of one key head."""
        return self.heads // self.kv_heads


@dataclass(frozen=True)
class Launch:
    """What a kernel is compiled for: its constants, warps and pipeline stages."""

    constants: dict[str, Any]
    num_warps: int
    num_stages: int = _NUM_STAGES


class Card(NamedTuple):
    """What launches depend on."""

    capability: tuple[int, int]
    num_multiprocessors: int

    @property
    def has_fast_products(self) -> bool:
        """Whether OpenAI Triton multiplies on tensor cores there: before sm_80 it does not."""
        return self.capability >= (8, 0)

    @property
    def multiplies_from_shared_memory(self) -> bool:
        """Whether products leave registers to the rest: of Hopper and of data centers' Blackwell,
        which have 227 KiB of shared memory, too.
        """
        return self.capability[0] in (9, 10)


_INTERPRETED = Card((8, 6), num_multiprocessors=8)  # so few that contexts are split in tests


@cache
def card_of(device: torch.device) -> Card:
    """The device's."""
    if device.type == "cpu":
        return _INTERPRETED
    found = torch.cuda.get_device_properties(device)
    return Card((found.major, found.minor), int(found.multi_processor_count))


def num_splits(num_seqs: int, kv_heads: int, card: Card) -> int:
    """How many programs share a decode's context: a power of two, so many that each multiprocessor
    has two.
    """
    wanted = 2 * card.num_multiprocessors // (num_seqs * kv_heads)
    return min(_MOST_SPLITS, 1 << max(wanted.bit_length() - 1, 0))


@cache
def attention_launch(shape: AttentionShape, card: Card, *, is_decode: bool) -> Launch:
    """A tile is BLOCK_M rows (tokens times the query heads of a key head) by BLOCK_N tokens."""
    key_p, value_p = _power_of_two(shape.key_dim), _power_of_two(shape.value_dim)
    width = max(key_p, value_p)
    block_m, block_n, num_warps = _tile(width, shape.itemsize, card)
    if is_decode and shape.itemsize < 4 and shape.group <= 16 and card.has_fast_products:
        block_m, block_n, num_warps = 16, 64 if width <= 128 else 32, 4
    constants = {
        "KV_HEADS": shape.kv_heads,
        "GROUP": shape.group,
        "KEY_DIM": shape.key_dim,
        "VALUE_DIM": shape.value_dim,
        "KEY_P": key_p,
        "VALUE_P": value_p,
        "PAGE": PAGE_SIZE,
        "BLOCK_M": max(block_m, _power_of_two(shape.group)),
        "BLOCK_N": block_n,
        "IS_DECODE": is_decode,
        # Of float32: three products on tensor cores, as exact as one in float32. They take
        # registers that wide heads do not leave.
        "PRECISION": "tf32x3" if width <= 128 else "ieee",
    }
    return Launch(constants, num_warps)


def _tile(width: int, itemsize: int, card: Card) -> tuple[int, int, int]:
    """BLOCK_M, BLOCK_N and warps for heads of ``width`` numbers: the more, the smaller the tile
    that fits in registers.
    """
    if not card.has_fast_products or (itemsize == 4 and width > 128):
        return 16, 16, 4
    if itemsize == 4:
        return 16, 32, 8
    if width > 256:
        return 32, 16, 8
    block_n = 64 if width <= 64 or card.multiplies_from_shared_memory else 32
    return 128 if width <= 128 else 64, block_n, 8


@cache
def join_launch(shape: AttentionShape, splits: int) -> Launch:
    """One program a sequence and head."""
    constants = {
        "HEADS": shape.heads,
        "VALUE_DIM": shape.value_dim,
        "VALUE_P": _power_of_two(shape.value_dim),
        "SPLITS": splits,
    }
    return Launch(constants, num_warps=4)


@cache
def norm_launch(size: int) -> Launch:
    """One program a row."""
    size_p = _power_of_two(size)
    return Launch({"SIZE": size, "SIZE_P": size_p}, num_warps=min(16, max(1, size_p // 512)))


@cache
def rotary_launch(heads: int, kv_heads: int, dim: int, rotary: int) -> Launch:
    """A program takes 1024 numbers of one token, or one head."""
    half_p = _power_of_two(rotary // 2)
    constants = {
        "HEADS": heads,
        "KV_HEADS": kv_heads,
        "DIM": dim,
        "ROTARY": rotary,
        "HALF_P": half_p,
        "REST_P": _power_of_two(dim - rotary) if rotary < dim else 0,
        "BLOCK_H": max(1, 1024 // _power_of_two(dim)),
    }
    return Launch(constants, num_warps=4)


@cache
def silu_launch(size: int) -> Launch:
    """A program takes up to 1024 numbers of one row."""
    return Launch({"SIZE": size, "BLOCK": min(1024, _power_of_two(size))}, num_warps=4)


@cache
def draw_launch(vocab_size: int) -> Launch:
    """One program a row, which goes through it again and again: the more warps read at once, the
    sooner it is through.
    """
    return Launch({"BLOCK": min(4096, _power_of_two(vocab_size))}, num_warps=16)


def launch(
    kernel: Any, grid: tuple[int, ...], how: Launch, *arguments: Any, **constants: Any
) -> None:
    """Runs a kernel on the device of its first argument, in its interpreter where that is a CPU."""
    device = arguments[0].device
    if device.type == "cpu":
        with _interpreting():
            _interpreted(kernel)[grid](*arguments, **how.constants, **constants)
        return
    keep_compiled()
    with _current(device):
        kernel[grid](
            *arguments,
            **how.constants,
            **constants,
            num_warps=how.num_warps,
            num_stages=how.num_stages,
        )


@cache
def keep_compiled() -> None:
    """Has OpenAI Triton keep what it compiles where we keep such code, also where its own folder in
    the user's home can't be written.
    """
    import triton

    folder = next(private_folders("openai-triton"), None)
    if folder is not None and "TRITON_CACHE_DIR" not in os.environ:
        triton.knobs.cache.dir = str(folder)


def _current(device: torch.device) -> Any:
    """Makes a device the current one, on whose stream a kernel is launched."""
    if device.index == torch.cuda.current_device():
        return nullcontext()
    return torch.cuda.device(device)


def _interpreted(kernel: Any) -> Any:
    """A kernel that the interpreter runs; with TRITON_INTERPRET=1 it is one already."""
    from triton.runtime.interpreter import InterpretedFunction

    is_interpreted = isinstance(kernel, InterpretedFunction)
    return kernel if is_interpreted else InterpretedFunction(kernel.fn)


@contextmanager
def _interpreting() -> Iterator[None]:
    """Makes reductions, which are written in OpenAI Triton themselves, Python functions for as long
    as the interpreter runs, and infinities no warnings, as on a GPU.
    """
    import triton.language as tl
    from triton.runtime.interpreter import _patch_lang

    reductions = {name: getattr(tl, name) for name in ("max", "sum", "cumsum")}
    patched = _patch_lang(reductions["max"].fn)
    for name, reduction in reductions.items():
        setattr(tl, name, _interpreted(reduction).rewrite())
    try:
        with np.errstate(all="ignore"):
            yield
    finally:
        patched.restore()
        for name, reduction in reductions.items():
            setattr(tl, name, reduction)


def _power_of_two(number: int) -> int:
    """The least one of at least ``number``, and of 16: products need so many numbers."""
    return max(16, 1 << (number - 1).bit_length())
