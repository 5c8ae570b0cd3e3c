"""Chooses the CPU dtype for weights saved in 16 bits, by the processor's instructions."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import torch

from .device import free_cpu_bytes

# Of /proc/cpuinfo: AVX-512-BF16, AMX, ARM's.
_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}
_NO_PRODUCTS = "this processor has no instructions to multiply bfloat16"
_NO_FLOAT16 = "CPUs are slow in float16"
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


def fastest_dtype(saved: torch.dtype, num_bytes: int) -> tuple[torch.dtype, str]:
    """The dtype for weights saved in ``saved`` that take ``num_bytes``, and the reason for the log;
    an empty text where there is no choice.
    """
    if saved == torch.float16:
        return torch.float32, _NO_FLOAT16
    if saved != torch.bfloat16 or multiplies_bfloat16():
        return saved, ""
    wide_bytes, free = 2 * num_bytes, free_cpu_bytes()
    if wide_bytes > free:
        gib = f"{wide_bytes / _GIB:.1f} GiB while it loads, {free / _GIB:.1f} are free"
        return saved, f"float32 would be faster, but takes {gib}"
    return torch.float32, _NO_PRODUCTS


def slowness(dtype: torch.dtype) -> str:
    """Why products in ``dtype`` take several times as long as in float32; an empty text where they
    don't.
    """
    if dtype == torch.float16:
        return _NO_FLOAT16
    return _NO_PRODUCTS if dtype == torch.bfloat16 and not multiplies_bfloat16() else ""
