"""Runs compiled loops on the thread team that torch computes with.

A second thread team on the same cores halves the speed of both, and every threading library brings
one. So the kernels run on torch's own, through the function that code compiled by GCC with
``-fopenmp`` calls:
``GOMP_parallel(fn, data, num_threads, flags)``, part of libgomp's ABI
(https://gcc.gnu.org/onlinedocs/libgomp/Implementing-PARALLEL-construct.html). Where torch's OpenMP
is not libgomp the loops run on the calling thread alone.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

import torch

from .layout import NUM_ARGUMENTS

Arguments = ctypes.c_int64 * NUM_ARGUMENTS


class ThreadTeam:
    """The calling thread and torch's other threads: as many work on a kernel as torch computes with
    at the time, at most ``num_threads``.
    """

    def __init__(self, num_threads: int) -> None:
        self.num_threads = num_threads
        self._parallel = gomp_parallel() if num_threads > 1 else None
        if self._parallel is None:
            self.num_threads = 1

    def run(self, kernel: Kernel, *arguments: int, parallel: bool = True) -> None:
        """Runs a kernel to its end, on one thread where splitting it would cost more than it saves.

        ``arguments`` are integers: sizes, addresses of contiguous memory that outlives the call, or
        ``bits_of`` a float.
        """
        values = Arguments(0, 0, *arguments)
        num_threads = min(self.num_threads, torch.get_num_threads()) if parallel else 1
        if num_threads > 1 and self._parallel is not None:
            self._parallel(kernel.address, values, num_threads, 0)
        else:
            kernel.call(values)


class Kernel:
    """A compiled function ``void(int64 *arguments)`` at ``address``; whoever runs it takes tasks
    until there are none.
    """

    def __init__(self, address: int, owner: object) -> None:
        """``owner`` is what the machine code lives as long as."""
        self.address = address
        self.owner = owner
        self.call = ctypes.CFUNCTYPE(None, ctypes.POINTER(ctypes.c_int64))(address)


@cache
def bits_of(value: float) -> int:
    """A float64 as the integer that has its bits."""
    return ctypes.c_int64.from_buffer(ctypes.c_double(value)).value


def gomp_parallel() -> Any:
    """libgomp's entry, of the copy that torch has loaded; None where there is none."""
    torch_folder = Path(torch.__file__).parent
    copies = [
        *torch_folder.glob("lib/libgomp*"),
        *torch_folder.parent.glob("torch.libs/libgomp*"),  # in wheels for Arm
    ]
    for path in copies:
        try:
            # RTLD_NOLOAD: the copy that is there, never a second one.
            entry = ctypes.CDLL(str(path), mode=ctypes.RTLD_LOCAL | 4).GOMP_parallel
        except (OSError, AttributeError):
            continue
        entry.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
        entry.restype = None
        return entry
    return None
