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

from hf_triton.runtime.private_folders import private_folders
from hf_triton.text_generation.memory.pages import PAGE_SIZE

_MOST_SPLITS = 32
_NUM_STAGES = 3  # page numbers are loaded two tiles ahead, keys and values one
_ANY = 2**31


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


class Tile(NamedTuple):
    """What attention computes at a time: rows (tokens times the query heads of a key head) by
    tokens of the context.
    """

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int = _NUM_STAGES


class Tiled(NamedTuple):
    """Where a tile is taken: numbers of ``itemsize`` bytes and heads of ``width`` numbers at most,
    cards from ``least`` to ``most``.
    """

    itemsize: int
    width: int
    least: tuple[int, int]
    most: tuple[int, int]
    tile: Tile


_OLDEST, _AMPERE, _HOPPER, _NEWEST = (0, 0), (8, 0), (9, 0), (99, 0)
# The first that fits is taken: what is measured on a card takes a row before the others. The wider
# a head, the smaller the tile that fits in registers; on Hopper and data centers' Blackwell,
# products leave registers to the rest.
# Of a token each of several sequences, where products take tensor cores:
DECODE_TILES = (
    Tiled(2, 128, _AMPERE, _NEWEST, Tile(16, 64, 4)),
    Tiled(2, _ANY, _AMPERE, _NEWEST, Tile(16, 32, 4)),
)
TILES = (
    Tiled(_ANY, _ANY, _OLDEST, (7, 9), Tile(16, 16, 4)),  # without products on tensor cores
    Tiled(2, 64, _AMPERE, _NEWEST, Tile(128, 64, 8)),
    Tiled(2, 128, _HOPPER, (10, 9), Tile(128, 64, 8)),
    Tiled(2, 128, _AMPERE, _NEWEST, Tile(128, 32, 8)),
    Tiled(2, 256, _HOPPER, (10, 9), Tile(64, 64, 8)),
    Tiled(2, 256, _AMPERE, _NEWEST, Tile(64, 32, 8)),
    Tiled(2, _ANY, _AMPERE, _NEWEST, Tile(32, 16, 8)),
    Tiled(4, 128, _AMPERE, _NEWEST, Tile(16, 32, 8)),
    Tiled(4, _ANY, _AMPERE, _NEWEST, Tile(16, 16, 4)),
)


class Card(NamedTuple):
    """What launches depend on."""

    capability: tuple[int, int]
    num_multiprocessors: int


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
    """A tile of ``DECODE_TILES`` for a decode of few heads to a key head, else of ``TILES``."""
    key_p, value_p = _power_of_two(shape.key_dim), _power_of_two(shape.value_dim)
    width = max(key_p, value_p)
    tiles = (*DECODE_TILES, *TILES) if is_decode and shape.group <= 16 else TILES
    tile = next(
        one.tile
        for one in tiles
        if shape.itemsize <= one.itemsize
        and width <= one.width
        and one.least <= card.capability <= one.most
    )
    constants = {
        "KV_HEADS": shape.kv_heads,
        "GROUP": shape.group,
        "KEY_DIM": shape.key_dim,
        "VALUE_DIM": shape.value_dim,
        "KEY_P": key_p,
        "VALUE_P": value_p,
        "PAGE": PAGE_SIZE,
        "BLOCK_M": max(tile.block_m, _power_of_two(shape.group)),
        "BLOCK_N": tile.block_n,
        "IS_DECODE": is_decode,
        # Of float32: three products on tensor cores, as exact as one in float32. They take
        # registers that wide heads do not leave.
        "PRECISION": "tf32x3" if width <= 128 else "ieee",
    }
    return Launch(constants, tile.num_warps, tile.num_stages)


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
