"""What is done with tiles (AMX) and their rows, in LLVM's instructions, for tile_kernels.py.

A tile is 16 rows of 64 bytes: 32 numbers in bfloat16, 16 in float32 (Intel's Architecture
Instruction Set Extensions Programming Reference, chapter 3).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

ROWS = 16  # of a tile
DEEP = 32  # numbers in bfloat16 of a tile's row, and tokens and dims that are computed at once
TILE = 1024  # bytes
FLOATS = 256  # of a tile
_LOWEST = -1e30
_TO_INTEGER, _LEAST_POWER = 3.0 * 2**22, -126.0
# 2 to x from -0.5 to 0.5, within a part in 10,000; bfloat16 keeps one in 500.
_POWER = (0.0550089308, 0.242210984, 0.69328293, 1.0)
_I8, _I32, _I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
_FLOAT = ir.VectorType(ir.FloatType(), ROWS)
_INTEGER = ir.VectorType(_I32, ROWS)


class _BFloat16(ir.Type):
    """LLVM's bfloat, which llvmlite has no name for."""

    def _to_string(self) -> str:
        return "bfloat"


def _call(builder: Any, name: str, kind: Any, *arguments: Any) -> Any:
    """An intrinsic of LLVM's."""
    signature = ir.FunctionType(kind, [argument.type for argument in arguments])
    function = builder.module.globals.get(name)
    if function is None:
        function = ir.Function(builder.module, signature, name)
    return builder.call(function, arguments)


def _loop(
    builder: Any, count: Any, firsts: Sequence[Any], body: Callable[[Any, list[Any]], list[Any]]
) -> list[Any]:
    """Calls ``body`` with each number below ``count``, which is at least 1, and what it returned
    for the one before; what it returned last.
    """
    before = builder.block
    loop, after = builder.append_basic_block("loop"), builder.append_basic_block("looped")
    builder.branch(loop)
    builder.position_at_end(loop)
    index = builder.phi(_I64)
    carried = [builder.phi(first.type) for first in firsts]
    made = body(index, list(carried))
    following = builder.add(index, _I64(1))
    index.add_incoming(_I64(0), before)
    index.add_incoming(following, builder.block)
    for phi, first, new in zip(carried, firsts, made, strict=True):
        phi.add_incoming(first, before)
        phi.add_incoming(new, builder.block)
    builder.cbranch(builder.icmp_signed("<", following, count), loop, after)
    builder.position_at_end(after)
    return made


def _splat(builder: Any, value: Any) -> Any:
    empty = ir.Constant(ir.VectorType(value.type, ROWS), ir.Undefined)
    lane = builder.insert_element(empty, value, _I32(0))
    return builder.shuffle_vector(lane, empty, ir.Constant(_INTEGER, [0] * ROWS))


def _constant(value: float) -> Any:
    return ir.Constant(_FLOAT, [value] * ROWS)


def _at(builder: Any, pointer: Any, index: Any, kind: Any = _FLOAT) -> Any:
    return builder.bitcast(builder.gep(pointer, [index]), kind.as_pointer())


@intrinsic
def set_up(typing_context: Any) -> Any:
    """Makes all tiles of the calling thread 16 rows of 64 bytes."""
    signature = types.void()

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        palette, width, rows = 1, 64, 16
        layout = [palette, 0, *[width * (2**16 + 1) * (2**32 + 1)] * 2, 0, 0]
        layout += [rows * 0x0101010101010101, 0]
        place = builder.alloca(ir.VectorType(_I64, 8))
        place.align = 64
        builder.store(ir.Constant(ir.VectorType(_I64, 8), layout), place)
        _call(
            builder,
            "llvm.x86.ldtilecfg",
            ir.VoidType(),
            builder.bitcast(place, _I8.as_pointer()),
        )
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def let_go(typing_context: Any) -> Any:
    """The calling thread's tiles are as before ``set_up``: none."""
    signature = types.void()

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _call(builder, "llvm.x86.tilerelease", ir.VoidType())
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
        stride = _I64(64)

        def tile(name: str, number: int, address: Any) -> None:
            place = builder.inttoptr(address, _I8.as_pointer())
            _call(builder, name, ir.VoidType(), _I8(number), place, stride)

        def step(k: Any, carried: list[Any]) -> list[Any]:
            first = builder.add(b, builder.mul(k, b_step))
            tile("llvm.x86.tileloadd64", 2, builder.add(a, builder.mul(k, a_step)))
            tile("llvm.x86.tileloadd64", 3, first)
            tile("llvm.x86.tileloadd64", 4, builder.add(first, _I64(TILE)))
            for number in (0, 1):
                arguments = _I8(number), _I8(2), _I8(3 + number)
                _call(builder, "llvm.x86.tdpbf16ps", ir.VoidType(), *arguments)
            return []

        for number in (0, 1):
            _call(builder, "llvm.x86.tilezero", ir.VoidType(), _I8(number))
        _loop(builder, depth, [], step)
        for number in (0, 1):
            tile("llvm.x86.tilestored64", number, builder.add(out, _I64(number * TILE)))
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def mask(typing_context: Any, row: Any, tile: Any, least: Any, most: Any) -> Any:
    """In a tile's row of scores, those before ``least`` and from ``most`` on become the lowest."""
    number = types.int64
    signature = types.void(types.CPointer(types.float32), number, number, number)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        row, tile, least, most = args
        place = _at(builder, row, builder.mul(tile, _I64(FLOATS)))
        first = builder.trunc(builder.mul(tile, _I64(ROWS)), _I32)
        lanes = ir.Constant(_INTEGER, list(range(ROWS)))
        lanes = builder.add(_splat(builder, first), lanes)
        from_, to = (_splat(builder, builder.trunc(bound, _I32)) for bound in (least, most))
        is_out = builder.or_(
            builder.icmp_signed("<", lanes, from_), builder.icmp_signed(">=", lanes, to)
        )
        lowest = _constant(_LOWEST)
        builder.store(builder.select(is_out, lowest, builder.load(place, align=64)), place, 64)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def _soften_row(typing_context: Any, row: Any, pairs: Any, scale: Any, weights: Any) -> Any:
    floats = types.CPointer(types.float32)
    signature = types.float32(floats, types.int64, types.float32, floats)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        row, pairs, scale, weights = args

        def scores(pair: Any) -> list[Any]:
            first = builder.mul(pair, _I64(2 * FLOATS))
            places = first, builder.add(first, _I64(FLOATS))
            return [builder.load(_at(builder, row, place), align=64) for place in places]

        def largest(pair: Any, carried: list[Any]) -> list[Any]:
            return [_larger(builder, *both) for both in zip(carried, scores(pair), strict=True)]

        lowest = _constant(_LOWEST)
        peaks = _loop(builder, pairs, [lowest, lowest], largest)
        peak = _reduced(builder, "fmax", _larger(builder, *peaks))
        scales = _splat(builder, scale)
        offset = _splat(builder, builder.fneg(builder.fmul(peak, scale)))

        def weigh(pair: Any, sums: list[Any]) -> list[Any]:
            made = [_power(builder, x, scales, offset) for x in scores(pair)]
            halves = [_rounded(builder, one) for one in made]
            both = builder.shuffle_vector(
                *halves, ir.Constant(ir.VectorType(_I32, DEEP), list(range(DEEP)))
            )
            place = _at(builder, weights, builder.mul(pair, _I64(FLOATS)), both.type)
            builder.store(both, place, align=64)
            return [builder.fadd(*one, flags=["contract"]) for one in zip(sums, made, strict=True)]

        zero = _constant(0.0)
        sums = _loop(builder, pairs, [zero, zero], weigh)
        return _reduced(builder, "fadd", builder.fadd(*sums))

    return signature, generate


# Not reassociated, as exp in kernels.py: numbers are rounded by what is added and subtracted.
@njit(fastmath={"contract", "nnan", "ninf", "nsz"}, error_model="numpy")
def soften(row: Any, pairs: Any, scale: Any, weights: Any) -> Any:
    """A row of pairs of tiles of scores, times ``scale``, to a row of tiles of weights in bfloat16:
    2 to the score less the largest -> their sum.
    """
    return _soften_row(row, pairs, scale, weights)


def _larger(builder: Any, a: Any, b: Any) -> Any:
    return builder.select(builder.fcmp_ordered(">", a, b, flags=["fast"]), a, b, flags=["fast"])


def _reduced(builder: Any, kind: str, vector: Any) -> Any:
    """Halves against halves, to one number."""
    for half in (8, 4, 2, 1):
        other = builder.shuffle_vector(
            vector, vector, ir.Constant(_INTEGER, [(i + half) % ROWS for i in range(ROWS)])
        )
        vector = _larger(builder, vector, other) if kind == "fmax" else builder.fadd(vector, other)
    return builder.extract_element(vector, _I32(0))


def _rounded(builder: Any, vector: Any) -> Any:
    """float32 to the bits of bfloat16."""
    narrow = builder.fptrunc(vector, ir.VectorType(_BFloat16(), ROWS))
    return builder.bitcast(narrow, ir.VectorType(ir.IntType(16), ROWS))


def _power(builder: Any, x: Any, scale: Any, offset: Any) -> Any:
    """2 to ``x * scale + offset``, which is not above 0."""

    def fused(a: Any, b: Any, c: Any) -> Any:
        return _call(builder, "llvm.fma.v16f32", _FLOAT, a, b, c)

    x = _larger(builder, fused(x, scale, offset), _constant(_LEAST_POWER))
    shifted = builder.fadd(x, _constant(_TO_INTEGER))
    part = builder.fsub(x, builder.fsub(shifted, _constant(_TO_INTEGER)))
    value = _constant(_POWER[0])
    for factor in _POWER[1:]:
        value = fused(value, part, _constant(factor))
    exponent = builder.shl(builder.bitcast(shifted, _INTEGER), ir.Constant(_INTEGER, [23] * ROWS))
    return builder.bitcast(builder.add(builder.bitcast(value, _INTEGER), exponent), _FLOAT)


@intrinsic
def copy(typing_context: Any, x: Any, index: Any, to: Any) -> Any:
    """64 bytes from ``x[index]`` on to ``to``, where a tile's row begins."""
    signature = types.void(x, types.int64, types.CPointer(types.float32))

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        x, index, to = args
        row = builder.load(_at(builder, x, index), align=2)
        builder.store(row, _at(builder, to, _I64(0)), align=64)
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
        places = [_at(builder, x, index, kind) for index in (index, other)]
        low, high = (builder.zext(builder.load(place, align=2), _INTEGER) for place in places)
        both = builder.or_(low, builder.shl(high, ir.Constant(_INTEGER, [16] * ROWS)))
        builder.store(both, _at(builder, to, _I64(0), _INTEGER), align=64)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def store_row(typing_context: Any, row: Any, part: Any, out: Any, index: Any) -> Any:
    """A tile's row times ``part`` to 16 numbers in bfloat16 from ``out[index]`` on."""
    floats = types.CPointer(types.float32)
    signature = types.void(floats, types.float32, types.CPointer(types.uint16), types.int64)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        row, part, out, index = args
        values = builder.load(_at(builder, row, _I64(0)), align=64)
        values = _rounded(builder, builder.fmul(values, _splat(builder, part)))
        builder.store(values, _at(builder, out, index, values.type), align=2)
        return context.get_dummy_value()

    return signature, generate
