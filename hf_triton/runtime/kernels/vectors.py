"""Rows of 16 numbers, in LLVM's instructions: for loops that LLVM itself computes a number at a
time, as it can't tell that what they read and what they write are apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir

from .kernels import (
    EXP,
    GELU_CUBIC,
    GELU_LINEAR,
    GELU_TAIL,
    LEAST_POWER,
    LN2_HIGH,
    LN2_LOW,
    LOG2_E,
    MOST_POWER,
    TAIL_END,
)

ROWS = 16  # of a tile, and numbers of a row
_TO_INTEGER, _LESS_FLOOR = 3.0 * 2**22, 9
_LEAST_POWER = -125.0  # what is smaller is no normal float32, which takes ten times as long
# 2 to x from 0 to 1, within a part in 10,000; bfloat16 keeps one in 500.
_POWER = (0.078024552, 0.226067185, 0.695833491, 0.999925228)
I8, I32, I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
FLOAT_ROW = ir.VectorType(ir.FloatType(), ROWS)
INTEGER_ROW = ir.VectorType(I32, ROWS)


class BFloat16(ir.Type):
    """LLVM's bfloat, which llvmlite has no name for."""

    def _to_string(self) -> str:
        return "bfloat"


def call(builder: Any, name: str, kind: Any, *arguments: Any) -> Any:
    """An intrinsic of LLVM's."""
    signature = ir.FunctionType(kind, [argument.type for argument in arguments])
    function = builder.module.globals.get(name)
    if function is None:
        function = ir.Function(builder.module, signature, name)
    return builder.call(function, arguments)


def loop(
    builder: Any, count: Any, firsts: Sequence[Any], body: Callable[[Any, list[Any]], list[Any]]
) -> list[Any]:
    """Calls ``body`` with each number below ``count``, which is at least 1, and what it returned
    for the one before; what it returned last.
    """
    before = builder.block
    loop, after = builder.append_basic_block("loop"), builder.append_basic_block("looped")
    builder.branch(loop)
    builder.position_at_end(loop)
    index = builder.phi(I64)
    carried = [builder.phi(first.type) for first in firsts]
    made = body(index, list(carried))
    following = builder.add(index, I64(1))
    index.add_incoming(I64(0), before)
    index.add_incoming(following, builder.block)
    for phi, first, new in zip(carried, firsts, made, strict=True):
        phi.add_incoming(first, before)
        phi.add_incoming(new, builder.block)
    builder.cbranch(builder.icmp_signed("<", following, count), loop, after)
    builder.position_at_end(after)
    return made


def splat(builder: Any, value: Any) -> Any:
    """A row of one number."""
    empty = ir.Constant(ir.VectorType(value.type, ROWS), ir.Undefined)
    lane = builder.insert_element(empty, value, I32(0))
    return builder.shuffle_vector(lane, empty, ir.Constant(INTEGER_ROW, [0] * ROWS))


def constant(value: Any) -> Any:
    """A row of one float32."""
    return ir.Constant(FLOAT_ROW, [float(value)] * ROWS)


def at(builder: Any, pointer: Any, index: Any, kind: Any = FLOAT_ROW) -> Any:
    """A pointer to a row at ``pointer[index]``."""
    return builder.bitcast(builder.gep(pointer, [index]), kind.as_pointer())


def larger(builder: Any, a: Any, b: Any) -> Any:
    """The larger of each two numbers, none of them NaN."""
    return builder.select(builder.fcmp_ordered(">", a, b, flags=["fast"]), a, b, flags=["fast"])


def folded(builder: Any, fold: Callable[[Any, Any], Any], rows: Sequence[Any]) -> Any:
    """A row whose number i is ``rows[i]`` folded to one; 16 rows."""
    for step in (1, 2, 4, 8):
        low = [lane + ROWS - step if lane & step else lane for lane in range(ROWS)]
        high = [lane + ROWS if lane & step else lane + step for lane in range(ROWS)]
        halves = [ir.Constant(INTEGER_ROW, lanes) for lanes in (low, high)]
        pairs = zip(rows[::2], rows[1::2], strict=True)
        rows = [fold(*(builder.shuffle_vector(*pair, half) for half in halves)) for pair in pairs]
    return rows[0]


def rounded(builder: Any, vector: Any) -> Any:
    """float32 to the bits of bfloat16."""
    narrow = builder.fptrunc(vector, ir.VectorType(BFloat16(), ROWS))
    return builder.bitcast(narrow, ir.VectorType(ir.IntType(16), ROWS))


def rounded_pair(builder: Any, first: Any, second: Any) -> Any:
    """Two rows in float32 to the bits of 32 numbers in bfloat16."""
    kind = ir.VectorType(BFloat16(), 2 * ROWS)
    name = "llvm.x86.avx512bf16.cvtne2ps2bf16.512"
    made = call(builder, name, kind, second, first)
    return builder.bitcast(made, ir.VectorType(ir.IntType(16), 2 * ROWS))


def widened(builder: Any, vector: Any) -> Any:
    """The bits of bfloat16 to float32."""
    wide = builder.shl(builder.zext(vector, INTEGER_ROW), ir.Constant(INTEGER_ROW, [16] * ROWS))
    return builder.bitcast(wide, FLOAT_ROW)


def upper_bits(builder: Any, vector: Any) -> Any:
    """float32 less what bfloat16 can't hold."""
    mask = ir.Constant(INTEGER_ROW, [0xFFFF0000] * ROWS)
    return builder.bitcast(builder.and_(builder.bitcast(vector, INTEGER_ROW), mask), FLOAT_ROW)


def upper_halves(builder: Any, first: Any, second: Any) -> Any:
    """The upper 16 bits of 32 numbers, as a row."""
    halves = ir.VectorType(ir.IntType(16), 2 * ROWS)
    odd = ir.Constant(ir.VectorType(I32, 2 * ROWS), list(range(1, 4 * ROWS, 2)))
    both = [builder.bitcast(vector, halves) for vector in (first, second)]
    return builder.bitcast(builder.shuffle_vector(*both, odd), FLOAT_ROW)


def power(builder: Any, x: Any, scale: Any, offset: Any) -> Any:
    """2 to ``x * scale + offset``, which is not above 0; AVX-512."""
    x = larger(builder, _fused(builder, x, scale, offset), constant(_LEAST_POWER))
    name, rest = "llvm.x86.avx512.mask", (constant(0), ir.IntType(16)(-1), I32(4))
    part = call(builder, f"{name}.reduce.ps.512", FLOAT_ROW, x, I32(_LESS_FLOOR), *rest)
    value = _polynomial(builder, part, _POWER)
    return call(builder, f"{name}.scalef.ps.512", FLOAT_ROW, value, x, *rest)


def gelu(builder: Any, x: Any) -> Any:
    """As in kernels.py."""
    size = _smaller(builder, _size(builder, x), constant(TAIL_END))
    tail = exp(builder, _polynomial(builder, size, GELU_TAIL))
    is_below = builder.fcmp_ordered("<", x, constant(0))
    return builder.fmul(x, builder.select(is_below, tail, builder.fsub(constant(1), tail)))


def gelu_tanh(builder: Any, x: Any) -> Any:
    """As in kernels.py."""
    square = builder.fmul(x, x)
    slope = _fused(builder, square, constant(-GELU_CUBIC), constant(-GELU_LINEAR))
    return builder.fdiv(x, builder.fadd(constant(1), exp(builder, builder.fmul(x, slope))))


def exp(builder: Any, x: Any) -> Any:
    """As in kernels.py."""
    x = _smaller(builder, larger(builder, x, constant(LEAST_POWER)), constant(MOST_POWER))
    shifted = _fused(builder, x, constant(LOG2_E), constant(_TO_INTEGER))
    n = builder.fsub(constant(_TO_INTEGER), shifted)
    for part in (LN2_HIGH, LN2_LOW):
        x = _fused(builder, n, constant(part), x)
    value = _polynomial(builder, x, (*EXP, 1.0, 1.0))
    return _scaled(builder, value, shifted)


def _polynomial(builder: Any, x: Any, factors: Sequence[Any]) -> Any:
    """The factor of the highest power first."""
    value = constant(factors[0])
    for factor in factors[1:]:
        value = _fused(builder, value, x, constant(factor))
    return value


def _fused(builder: Any, a: Any, b: Any, c: Any) -> Any:
    return call(builder, "llvm.fma.v16f32", FLOAT_ROW, a, b, c)


def _size(builder: Any, x: Any) -> Any:
    return call(builder, "llvm.fabs.v16f32", FLOAT_ROW, x)


def _smaller(builder: Any, a: Any, b: Any) -> Any:
    return builder.select(builder.fcmp_ordered("<", a, b, flags=["fast"]), a, b, flags=["fast"])


def _scaled(builder: Any, value: Any, shifted: Any) -> Any:
    """``value`` times 2 to the integer in the low bits of _TO_INTEGER + n."""
    exponent = builder.shl(
        builder.bitcast(shifted, INTEGER_ROW), ir.Constant(INTEGER_ROW, [23] * ROWS)
    )
    return builder.bitcast(builder.add(builder.bitcast(value, INTEGER_ROW), exponent), FLOAT_ROW)
