"""What is done with tiles (AMX) and their rows, in LLVM's instructions, for tile_kernels.py.

A tile is 16 rows of 64 bytes: 32 numbers in bfloat16, 16 in float32 (Intel's Architecture
Instruction Set Extensions Programming Reference, chapter 3).
"""

from __future__ import annotations

from functools import partial
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .vectors import (
    I8,
    I32,
    I64,
    INTEGER_ROW,
    ROWS,
    at,
    call,
    constant,
    folded,
    larger,
    loop,
    power,
    rounded,
    rounded_pair,
    splat,
)

DEEP = 32  # numbers in bfloat16 of a tile's row, and tokens and dims that are computed at once
TILE = 1024  # bytes
FLOATS = 256  # of a tile
_LOWEST = -1e30


@intrinsic
def set_up(typing_context: Any) -> Any:
    """Makes all tiles of the calling thread 16 rows of 64 bytes."""
    signature = types.void()

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        palette, width, rows = 1, 64, 16
        layout = [palette, 0, *[width * (2**16 + 1) * (2**32 + 1)] * 2, 0, 0]
        layout += [rows * 0x0101010101010101, 0]
        place = builder.alloca(ir.VectorType(I64, 8))
        place.align = 64
        builder.store(ir.Constant(ir.VectorType(I64, 8), layout), place)
        call(
            builder,
            "llvm.x86.ldtilecfg",
            ir.VoidType(),
            builder.bitcast(place, I8.as_pointer()),
        )
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def let_go(typing_context: Any) -> Any:
    """The calling thread's tiles are as before ``set_up``: none."""
    signature = types.void()

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        call(builder, "llvm.x86.tilerelease", ir.VoidType())
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def multiply(
    typing_context: Any, a: Any, a_step: Any, b: Any, b_step: Any, depth: Any, out: Any
) -> Any:
    """The two tiles at address ``out`` = sum over k < depth of the tile at ``a + k * a_step`` times
    the two at ``b + k * b_step``, whose rows hold two rows of the product's factor in turns.
    """
    number = types.int64
    signature = types.void(*[number] * 6)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        a, a_step, b, b_step, depth, out = args
        stride = I64(64)

        def tile(name: str, number: int, address: Any) -> None:
            place = builder.inttoptr(address, I8.as_pointer())
            call(builder, name, ir.VoidType(), I8(number), place, stride)

        def step(k: Any, carried: list[Any]) -> list[Any]:
            first = builder.add(b, builder.mul(k, b_step))
            tile("llvm.x86.tileloadd64", 2, builder.add(a, builder.mul(k, a_step)))
            tile("llvm.x86.tileloadd64", 3, first)
            tile("llvm.x86.tileloadd64", 4, builder.add(first, I64(TILE)))
            for number in (0, 1):
                arguments = I8(number), I8(2), I8(3 + number)
                call(builder, "llvm.x86.tdpbf16ps", ir.VoidType(), *arguments)
            return []

        for number in (0, 1):
            call(builder, "llvm.x86.tilezero", ir.VoidType(), I8(number))
        loop(builder, depth, [], step)
        for number in (0, 1):
            tile("llvm.x86.tilestored64", number, builder.add(out, I64(number * TILE)))
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def mask(typing_context: Any, row: Any, tile: Any, least: Any, most: Any) -> Any:
    """In a tile's row of scores, those before ``least`` and from ``most`` on become the lowest."""
    number = types.int64
    signature = types.void(types.CPointer(types.float32), number, number, number)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        row, tile, least, most = args
        place = at(builder, row, builder.mul(tile, I64(FLOATS)))
        first = builder.trunc(builder.mul(tile, I64(ROWS)), I32)
        lanes = ir.Constant(INTEGER_ROW, list(range(ROWS)))
        lanes = builder.add(splat(builder, first), lanes)
        from_, to = (splat(builder, builder.trunc(bound, I32)) for bound in (least, most))
        is_out = builder.or_(
            builder.icmp_signed("<", lanes, from_), builder.icmp_signed(">=", lanes, to)
        )
        lowest = constant(_LOWEST)
        builder.store(builder.select(is_out, lowest, builder.load(place, align=64)), place, 64)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def find_offsets(typing_context: Any, scores: Any, pairs: Any, scale: Any, offsets: Any) -> Any:
    """``offsets`` (16,) = less the largest of each row of pairs of tiles of scores * ``scale``."""
    floats = types.CPointer(types.float32)
    signature = types.void(floats, types.int64, types.float32, floats)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        scores, pairs, scale, offsets = args

        def largest(pair: Any, peaks: list[Any]) -> list[Any]:
            tiles = builder.gep(scores, [builder.mul(pair, I64(2 * FLOATS))])
            for first in (0, ROWS):
                rows = [_row(builder, tiles, first + r) for r in range(ROWS)]
                peaks = [larger(builder, *both) for both in zip(peaks, rows, strict=True)]
            return peaks

        peaks = loop(builder, pairs, [constant(_LOWEST)] * ROWS, largest)
        peak = folded(builder, partial(larger, builder), peaks)
        made = builder.fneg(builder.fmul(peak, splat(builder, scale)))
        builder.store(made, at(builder, offsets, I64(0)), align=64)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def weigh(
    typing_context: Any, scores: Any, scale: Any, offsets: Any, weights: Any, sums: Any
) -> Any:
    """A pair of tiles of scores to a tile of weights in bfloat16, 2 to the score * ``scale`` + the
    row's offset; adds them to ``sums`` (16, 16).
    """
    floats = types.CPointer(types.float32)
    signature = types.void(floats, types.float32, floats, floats, floats)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        scores, scale, offsets, weights, sums = args
        scales = splat(builder, scale)
        for r in range(ROWS):
            offset = splat(builder, builder.load(builder.gep(offsets, [I64(r)])))
            halves = [_row(builder, scores, first + r) for first in (0, ROWS)]
            made = [power(builder, x, scales, offset) for x in halves]
            both = rounded_pair(builder, *made)
            builder.store(both, at(builder, weights, I64(r * ROWS), both.type), align=64)
            sum_ = builder.fadd(_row(builder, sums, r), builder.fadd(*made))
            builder.store(sum_, at(builder, sums, I64(r * ROWS)), align=64)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def find_parts(typing_context: Any, sums: Any, parts: Any) -> Any:
    """``parts`` (16,) = 1 / the sum of each row of ``sums`` (16, 16)."""
    floats = types.CPointer(types.float32)
    signature = types.void(floats, floats)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        sums, parts = args
        rows = [_row(builder, sums, r) for r in range(ROWS)]
        sum_ = folded(builder, builder.fadd, rows)
        builder.store(builder.fdiv(constant(1), sum_), at(builder, parts, I64(0)), align=64)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def clear(typing_context: Any, tile: Any) -> Any:
    """Makes a tile's rows zeros."""
    signature = types.void(types.CPointer(types.float32))

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        for r in range(ROWS):
            builder.store(constant(0), at(builder, args[0], I64(r * ROWS)), align=64)
        return context.get_dummy_value()

    return signature, generate


def _row(builder: Any, tile: Any, row: int) -> Any:
    return builder.load(at(builder, tile, I64(row * ROWS)), align=64)


@intrinsic
def copy(typing_context: Any, x: Any, index: Any, to: Any) -> Any:
    """64 bytes from ``x[index]`` on to ``to``, where a tile's row begins."""
    signature = types.void(x, types.int64, types.CPointer(types.float32))

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        x, index, to = args
        row = builder.load(at(builder, x, index), align=2)
        builder.store(row, at(builder, to, I64(0)), align=64)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def interleave(typing_context: Any, x: Any, index: Any, other: Any, to: Any) -> Any:
    """16 numbers from ``x[index]`` on and 16 from ``x[other]`` on in turns to a tile's row."""
    number = types.int64
    signature = types.void(x, number, number, types.CPointer(types.float32))

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        x, index, other, to = args
        kind = ir.VectorType(ir.IntType(16), ROWS)
        places = [at(builder, x, index, kind) for index in (index, other)]
        low, high = (builder.zext(builder.load(place, align=2), INTEGER_ROW) for place in places)
        both = builder.or_(low, builder.shl(high, ir.Constant(INTEGER_ROW, [16] * ROWS)))
        builder.store(both, at(builder, to, I64(0), INTEGER_ROW), align=64)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def store_row(typing_context: Any, row: Any, part: Any, out: Any, index: Any) -> Any:
    """A tile's row times ``part`` to 16 numbers in bfloat16 from ``out[index]`` on."""
    floats = types.CPointer(types.float32)
    signature = types.void(floats, types.float32, types.CPointer(types.uint16), types.int64)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        row, part, out, index = args
        values = builder.load(at(builder, row, I64(0)), align=64)
        values = rounded(builder, builder.fmul(values, splat(builder, part)))
        builder.store(values, at(builder, out, index, values.type), align=2)
        return context.get_dummy_value()

    return signature, generate
