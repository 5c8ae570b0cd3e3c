"""Asks the operating system for a processor's tiles (AMX), which tile_kernels.py multiplies in."""

from __future__ import annotations

import ctypes
import platform
import sys
from functools import cache
from typing import Any

_ARCH_PRCTL, _REQUEST, _TILE_DATA = 158, 0x1023, 18  # arch/x86/include/uapi/asm/prctl.h
_FEATURES = {"+amx-tile", "+amx-bf16", "+avx512bf16", "+avx512f"}


@cache
def may_use_tiles() -> bool:
    """Whether this process, from here on, and Numba's code may multiply bfloat16 in tiles. Linux
    lets no process do so that did not ask: https://docs.kernel.org/arch/x86/xstate.html.
    """
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return False
    return _numba_knows_tiles() and not ctypes.CDLL(None).syscall(_ARCH_PRCTL, _REQUEST, _TILE_DATA)


def _numba_knows_tiles() -> bool:
    """By the processor, or what Numba's variables of the environment say instead."""
    try:
        import llvmlite.binding
        from numba import config
    except ImportError:
        return False
    settings: Any = config
    if settings.CPU_NAME is not None or not settings.ENABLE_AVX:
        return False
    features = settings.CPU_FEATURES
    if features is None:
        features = llvmlite.binding.get_host_cpu_features().flatten()
    return set(features.split(",")) >= _FEATURES
