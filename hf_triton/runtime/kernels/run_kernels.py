"""Runs kernels one after the other, so that Python is asked once for all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from .kernels import integers_at, reset_counters

_POINTER, _INT = ir.IntType(8).as_pointer(), ir.IntType(32)


@intrinsic
def _call(typing_context: Any, kernel: Any, arguments: Any) -> Any:
    """Runs the kernel at an address on this thread."""
    signature = types.void(types.int64, types.int64)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [_POINTER]).as_pointer()
        builder.call(builder.inttoptr(args[0], kind), [builder.inttoptr(args[1], _POINTER)])
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def _call_team(typing_context: Any, team: Any, kernel: Any, arguments: Any, threads: Any) -> Any:
    """Runs it on several, by GOMP_parallel at the address ``team``."""
    signature = types.void(*[types.int64] * 4)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [_POINTER, _POINTER, _INT, _INT]).as_pointer()
        pointers = [builder.inttoptr(one, _POINTER) for one in args[1:3]]
        count = builder.trunc(args[3], _INT)
        builder.call(builder.inttoptr(args[0], kind), [*pointers, count, _INT(0)])
        return context.get_dummy_value()

    return signature, generate


@njit(error_model="numpy")
def _run(a: Any) -> None:
    """2 how many, 3 for each: the address of a kernel, of its arguments, and its threads; 4 the
    address of GOMP_parallel.
    """
    runs = integers_at(a[3])
    for i in range(a[2]):
        kernel, arguments, threads = runs[3 * i], runs[3 * i + 1], runs[3 * i + 2]
        reset_counters(integers_at(arguments))
        if threads > 1:
            _call_team(a[4], kernel, arguments, threads)
        else:
            _call(kernel, arguments)


ENTRIES: dict[tuple[str, str], Callable[[Any], None]] = {("run", "int64"): lambda a: _run(a)}
