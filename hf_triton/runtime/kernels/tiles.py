"""Asks the operating system for a processor's tiles (AMX), which tile_kernels.py multiplies in."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from functools import cache

_ARCH_PRCTL, _REQUEST, _TILE_DATA = 158, 0x1023, 18  # arch/x86/include/uapi/asm/prctl.h
_FEATURES = ("amx-tile", "amx-bf16", "avx512bf16", "avx512f")
_LEAST_LLVM = 20  # Numba 0.62's; the one before ends the process at numbers in bfloat16
# Of Numba, whose import takes longer than loading all kernels.
_VARIABLES = ("NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES", "NUMBA_ENABLE_AVX")


@cache
def may_use_tiles() -> bool:
    """Whether this process, from here on, and Numba's code may multiply bfloat16 in tiles. Linux
    lets no process do so that did not ask: https://docs.kernel.org/arch/x86/xstate.html.
    """
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return False
    return _numba_knows_tiles() and not ctypes.CDLL(None).syscall(_ARCH_PRCTL, _REQUEST, _TILE_DATA)


def _numba_knows_tiles() -> bool:
    """By the processor, unless the environment tells Numba something else."""
    if any(name in os.environ for name in _VARIABLES):
        return False
    try:
        from llvmlite import binding

        features = binding.get_host_cpu_features()
    except (ImportError, RuntimeError):  # not all processors have a list
        return False
    is_new_enough = binding.llvm_version_info[0] >= _LEAST_LLVM
    return is_new_enough and all(features.get(name) for name in _FEATURES)
