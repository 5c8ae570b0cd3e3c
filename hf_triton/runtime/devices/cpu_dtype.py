"""Chooses the fastest CPU dtype for weights saved in 16 bits. Knows no models: times layers of one
usual size, for a single row and for many.
"""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from math import prod
from pathlib import Path

import torch

from .device import free_cpu_bytes
from .prepacked_linear import seconds_of_products

_ROWS = (1, 32)
_LEAST_GAIN = 1.1  # least gain of float32: less is noise, and its cache takes twice the memory
_MUCH = 2.0  # times as long
# Of /proc/cpuinfo: AVX-512-BF16, AMX, ARM's.
_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}
_GIB = 2**30


def multiplies_bfloat16() -> bool:
    """Whether the processor has bfloat16 products and oneDNN may use them. Without them such
    products take several times as long as float32's.
    """
    words: set[str] = set()
    with suppress(OSError):
        words = set(Path("/proc/cpuinfo").read_text(encoding="utf-8").split())
    is_allowed = torch.ops.mkldnn._is_mkldnn_bf16_supported()  # noqa: SLF001
    return bool(words & _FLAGS) and bool(is_allowed)


def fastest_dtype(saved: torch.dtype, num_bytes: int = 0) -> tuple[torch.dtype, str]:
    """The dtype for weights saved in ``saved`` that take ``num_bytes``, and the reason for the log;
    an empty text where there is no choice.
    """
    if saved == torch.float16:
        return torch.float32, "CPUs are slow in float16"
    if saved != torch.bfloat16:
        return saved, ""
    if multiplies_bfloat16():
        own, wide = _seconds(saved), _seconds(torch.float32)
        times = [f"{1e3 * a:.2f} and {1e3 * b:.2f}" for a, b in zip(own, wide, strict=True)]
        why = f"in bfloat16 and float32 1 row takes {times[0]} ms a product, 32 rows {times[1]}"
        if prod(wide) * _LEAST_GAIN ** len(_ROWS) > prod(own):
            return saved, why
    else:
        why = "this processor has no instructions to multiply bfloat16"
    wide_bytes, free = 2 * num_bytes, free_cpu_bytes()
    if wide_bytes > free:
        gib = f"{wide_bytes / _GIB:.1f} GiB while it loads, {free / _GIB:.1f} are free"
        return saved, f"float32 would be faster, but takes {gib}"
    return torch.float32, why


def slowness(asked: torch.dtype, saved: torch.dtype) -> str:
    """How much longer products take in ``asked`` than in the fastest dtype, for the log; an empty
    text where it is not much.
    """
    fastest, _ = fastest_dtype(saved)
    if asked == fastest:
        return ""
    times, rows = max(
        (slow / fast, rows)
        for rows, slow, fast in zip(_ROWS, _seconds(asked), _seconds(fastest), strict=True)
    )
    if times <= _MUCH:
        return ""
    name = str(fastest).removeprefix("torch.")
    many = "a row takes" if rows == 1 else f"{rows} rows take"
    return f"{many} {times:.1f} times as long as in {name}, which auto is"


@cache
def _seconds(dtype: torch.dtype) -> tuple[float, ...]:
    """Seconds of a product by its number of rows, in processor time on one thread, which other
    processes hardly change: models on a busy machine choose alike.
    """
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return tuple(seconds_of_products(dtype, rows) for rows in _ROWS)
    finally:
        torch.set_num_threads(num_threads)
