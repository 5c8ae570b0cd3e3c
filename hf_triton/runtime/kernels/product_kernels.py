"""Linear layers in tiles (AMX), with what follows each product: its bias, and GELU or none.

A float32 is the sum of three numbers in bfloat16, its first, second and third eight bits. Of the
nine products of two such sums the six largest are added up, in float32: what the others would add
is less than float32 itself rounds (Henry, Tang and Heinecke, https://arxiv.org/abs/1904.06376).
Processors with tiles multiply bfloat16 in them sixteen times as fast as float32.

A task is some rows times some outputs. Its thread writes the rows as tiles to its scratch
(``_keep_rows``), multiplies BLOCK of them at a time with BLOCK outputs' weights
(``_multiply_blocks``), and writes the sums with what follows (``_finish``).

Arguments are as in kernels.py. A row's outputs don't depend on the other rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from .kernels import bfloat16_at, float32_at, load, store, take
from .tile_operations import DEEP, ROWS, TILE, let_go, set_up
from .vectors import (
    I8,
    I64,
    at,
    call,
    gelu,
    gelu_tanh,
    rounded,
    upper_bits,
    upper_halves,
    widened,
)

BLOCK = 2 * ROWS  # rows, and columns, that are multiplied at once: four tiles of sums
PIECES = {types.float32: 3, types.uint16: 1}  # numbers in bfloat16 that make one
# The pieces of a row and of a weight that are multiplied, by how many there are: small products
# first, and as few tiles read between two as can be.
_ORDER = {1: [(0, 0)], 3: [(2, 0), (0, 0), (0, 2), (0, 1), (1, 1), (1, 0)]}


@intrinsic
def _like(typing_context: Any, x: Any, address: Any) -> Any:
    """``address`` as a pointer to what ``x`` points to."""
    signature = x(x, types.int64)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[1], args[0].type)

    return signature, generate


@intrinsic
def _pieces(typing_context: Any, x: Any) -> Any:
    """How many numbers in bfloat16 make one of ``x``."""
    signature = types.int64(x)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return I64(PIECES[signature.args[0].dtype])

    return signature, generate


@intrinsic
def _keep(typing_context: Any, x: Any, index: Any, to: Any) -> Any:
    """Writes DEEP numbers from ``x[index]`` on as a row of the tile at address ``to``; float32 as a
    row of three tiles, one for each piece. A piece is cut off, not rounded to: that takes a third
    of the time.
    """
    signature = types.void(x, types.int64, types.int64)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        x, index, to = args
        row = builder.inttoptr(to, ir.FloatType().as_pointer())
        if signature.args[0].dtype == types.uint16:
            value = builder.load(at(builder, x, index), align=2)
            builder.store(value, at(builder, row, I64(0)), align=64)
            return context.get_dummy_value()
        places = index, builder.add(index, I64(ROWS))
        rests = [builder.load(at(builder, x, place), align=4) for place in places]
        for piece in range(PIECES[types.float32]):
            parts = [upper_bits(builder, rest) for rest in rests]
            builder.store(
                upper_halves(builder, *rests), at(builder, row, I64(piece * TILE // 4)), 64
            )
            rests = [builder.fsub(*both) for both in zip(rests, parts, strict=True)]
        return context.get_dummy_value()

    return signature, generate


def _move(builder: Any, name: str, tile: int, address: Any, offset: int, stride: int) -> None:
    place = builder.inttoptr(builder.add(address, I64(offset)), I8.as_pointer())
    call(builder, f"llvm.x86.{name}64", ir.VoidType(), I8(tile), place, I64(stride))


def _moving(name: str) -> Any:
    """Makes what loads tiles 0 to 3 from sums (BLOCK, BLOCK) float32, or stores them there."""

    @intrinsic
    def move(typing_context: Any, sums: Any) -> Any:
        """``sums``: their address."""
        signature = types.void(types.int64)

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            for i in range(4):
                _move(builder, name, i, args[0], (i // 2 * BLOCK + i % 2) * ROWS * 4, 4 * BLOCK)
            return context.get_dummy_value()

        return signature, generate

    return move


_load_sums, _store_sums = _moving("tileloadd"), _moving("tilestored")


@intrinsic
def _clear_sums(typing_context: Any) -> Any:
    """Makes tiles 0 to 3 zeros."""
    signature = types.void()

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        for i in range(4):
            call(builder, "llvm.x86.tilezero", ir.VoidType(), I8(i))
        return context.get_dummy_value()

    return signature, generate


def _multiplying(tiles: int) -> Any:
    """Makes what adds one or two ``tiles`` of rows times two of weights to tiles 0 to 3."""

    @intrinsic
    def multiply(typing_context: Any, x: Any, rows: Any, others: Any, weights: Any) -> Any:
        """Addresses: of the first 16 rows, of the second, each a tile for each piece, and of the
        weights, two tiles for each piece.
        """
        signature = types.void(x, *[types.int64] * 3)

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            _, *left, right = args
            before: tuple[int, ...] = (-1, -1)
            for pair in _ORDER[PIECES[signature.args[0].dtype]]:
                for i in range(tiles if pair[0] != before[0] else 0):
                    _move(builder, "tileloadd", 4 + i, left[i], pair[0] * TILE, 64)
                for j in range(2 if pair[1] != before[1] else 0):
                    _move(builder, "tileloadd", 6 + j, right, (2 * pair[1] + j) * TILE, 64)
                for i in range(2 * tiles):
                    numbers = I8(i), I8(4 + i // 2), I8(6 + i % 2)
                    call(builder, "llvm.x86.tdpbf16ps", ir.VoidType(), *numbers)
                before = pair
            return context.get_dummy_value()

        return signature, generate

    return multiply


_multiply_one, _multiply_two = _multiplying(1), _multiplying(2)


def _finishing(follow: Callable[..., Any] | None) -> Any:
    """Makes what writes BLOCK sums of a row, with bias and what is to ``follow``."""

    @intrinsic
    def finish(typing_context: Any, out: Any, index: Any, sums: Any, bias: Any) -> Any:
        """``sums`` and ``bias``: addresses of BLOCK float32 each; to ``out[index]`` on."""
        signature = types.void(out, *[types.int64] * 3)

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            out, index, sums, bias = args
            is_wide = signature.args[0].dtype == types.float32
            rows = [builder.inttoptr(one, ir.FloatType().as_pointer()) for one in (sums, bias)]
            values = []
            for i in (0, ROWS):
                value, other = (builder.load(at(builder, one, I64(i)), align=64) for one in rows)
                value = builder.fadd(value, other)
                if follow is not None:
                    value = follow(
                        builder, value if is_wide else widened(builder, rounded(builder, value))
                    )
                values.append(value if is_wide else rounded(builder, value))
            for i, value in enumerate(values):
                place = at(builder, out, builder.add(index, I64(i * ROWS)), value.type)
                builder.store(value, place, align=4 if is_wide else 2)
            return context.get_dummy_value()

        return signature, generate

    return finish


_row, _gelu_row, _gelu_tanh_row = _finishing(None), _finishing(gelu), _finishing(gelu_tanh)


@njit(fastmath=True, error_model="numpy")
def _keep_rows(
    a: Any, x: Any, first: Any, count: Any, begin: Any, depth: Any, to: Any, end: Any
) -> None:
    """Writes ``count`` rows from ``first`` on as tiles to ``to``, of their inputs ``depth`` times
    DEEP from ``begin`` times DEEP on; zeros stand for missing rows and inputs. ``end`` is room for
    the end of a row, filled up to DEEP.
    """
    inputs, size = a[4], TILE * _pieces(x)
    for tile in range((count + ROWS - 1) // ROWS * depth):
        k, row = tile % depth, tile // depth * ROWS
        left = inputs - (begin + k) * DEEP
        for r in range(row, row + ROWS):
            at = (first + r) * inputs + (begin + k) * DEEP
            place = to + tile * size + r % ROWS * 64
            if r < count and left >= DEEP:
                _keep(x, at, place)
                continue
            for c in range(DEEP):
                store(_like(x, end), c, 0)
            for c in range(left if r < count else 0):
                store(_like(x, end), c, load(x, at + c))
            _keep(_like(x, end), 0, place)


@njit(fastmath=True, error_model="numpy")
def _linear(a: Any, x: Any, out: Any) -> None:
    """2 rows, 3 outputs, 4 inputs, 5 x (rows, inputs), 6 weights as devices/tile_linear.py lays
    them out, 7 bias float32, zeros up to whole BLOCKs, 8 out (rows, outputs), 9 what follows: 0
    nothing, 1 GELU, 2 its tanh form, 10 all threads' scratch, 11 bytes of one's, 12 rows and 13
    outputs of a task, in whole BLOCKs, 14 inputs that are multiplied before others are, in whole
    DEEP.
    """
    set_up()
    rows, outputs, deep, step = a[2], a[3], (a[4] + DEEP - 1) // DEEP, a[14] // DEEP
    end = (a[10] + take(a, 1) * a[11] + 63) // 64 * 64
    sums = end + 4 * DEEP
    # Half a tile off, for a processor waits with what it reads a multiple of 4096 bytes away from
    # what it is about to write.
    kept = sums + a[12] * a[13] * 4 + TILE // 2
    parts, before = (outputs + a[13] - 1) // a[13], -1
    while True:
        task = take(a, 0)
        first = task // parts * a[12]
        if first >= rows:
            break
        count, column = min(a[12], rows - first), task % parts * a[13]
        for begin in range(0, deep, step):
            depth = min(step, deep - begin)
            if first != before or step < deep:
                _keep_rows(a, x, first, count, begin, depth, kept, end)
                before = first
            _multiply_blocks(a, x, (first, count), column, (begin, depth), (kept, sums), out)
    let_go()


@njit(fastmath=True, error_model="numpy")
def _multiply_blocks(
    a: Any, x: Any, rows: Any, column: Any, inputs: Any, places: Any, out: Any
) -> None:
    """Adds the products of some inputs to a task's sums; with the last inputs writes them to
    ``out``: each block's rows between the products of the next block, which the processor computes
    meanwhile.
    """
    (first, count), (begin, depth), (kept, sums) = rows, inputs, places
    deep, size = (a[4] + DEEP - 1) // DEEP, TILE * _pieces(x)
    is_last, made = begin + depth == deep, sums
    place, row, end, to_row, to_column = 0, 0, 0, 0, 0
    for c in range(column, min(column + a[13], a[3]), BLOCK):
        weights = a[6] + (c // BLOCK * deep + begin) * 2 * size
        for r in range(0, count, BLOCK):
            if begin == 0:
                _clear_sums()
            else:
                _load_sums(made)
            at, has_two = kept + r // ROWS * depth * size, r + ROWS < count
            for k in range(depth):
                if has_two:
                    _multiply_two(x, at + k * size, at + (depth + k) * size, weights + 2 * k * size)
                else:
                    _multiply_one(x, at + k * size, at, weights + 2 * k * size)
                upto = end * (k + 1) // depth
                _finish(a, place, row, upto, to_row, to_column, out)
                row = upto
            _store_sums(made)
            if is_last:
                place, row, end = made, 0, min(BLOCK, count - r)
                to_row, to_column = first + r, c
            if depth == deep:
                made = sums + (4 * BLOCK * BLOCK if made == sums else 0)
            else:
                made += 4 * BLOCK * BLOCK
    _finish(a, place, row, end, to_row, to_column, out)


@njit(fastmath=True, error_model="numpy", inline="always")
def _finish(a: Any, sums: Any, begin: Any, end: Any, to_row: Any, column: Any, out: Any) -> None:
    """Writes rows of sums to ``out``, with bias and what follows."""
    bias, outputs = a[7] + 4 * column, a[3]
    whole = column + BLOCK <= outputs
    for r in range(begin, end):
        row, to = sums + 4 * BLOCK * r, (to_row + r) * outputs + column
        place, at = (out, to) if whole else (_like(out, row), 0)
        if a[9] == 1:
            _gelu_row(place, at, row, bias)
        elif a[9] == 2:
            _gelu_tanh_row(place, at, row, bias)
        else:
            _row(place, at, row, bias)
        for c in range(0 if whole else outputs - column):
            store(out, to + c, load(_like(out, row), c))


def _linear_float32(a: Any) -> None:
    _linear(a, float32_at(a[5]), float32_at(a[8]))


def _linear_bfloat16(a: Any) -> None:
    _linear(a, bfloat16_at(a[5]), bfloat16_at(a[8]))


ENTRIES: dict[tuple[str, str], Callable[[Any], None]] = {
    ("linear", "float32"): _linear_float32,
    ("linear", "bfloat16"): _linear_bfloat16,
}
