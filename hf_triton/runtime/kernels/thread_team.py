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
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch

from .layout import COUNTERS, NUM_ARGUMENTS

# Numbers that a kernel computes. Of few, starting the threads costs more than it saves. While it
# computes no more than some, other Python threads wait: to give them the interpreter's lock and
# wait for it would take longer.
_FEW, _MANY = 2**12, 2**17
Arguments = ctypes.c_int64 * NUM_ARGUMENTS


class ThreadTeam:
    """The calling thread and torch's other threads: as many work on a kernel as torch computes with
    at the time, at most ``num_threads``.
    """

    def __init__(self, num_threads: int) -> None:
        self.num_threads = num_threads
        self._parallel = self._brief = None
        if num_threads > 1:
            self._parallel, self._brief = map(gomp_parallel, (ctypes.CDLL, ctypes.PyDLL))
        if self._parallel is None:
            self.num_threads = 1
        self._scratch: dict[int, torch.Tensor] = {}

    def scratch(self, size: int) -> torch.Tensor:
        """(num_threads, size) float32 for kernels to write in; one for all of a size."""
        if size not in self._scratch:
            self._scratch[size] = torch.empty(self.num_threads, size)
        return self._scratch[size]

    def run(self, kernel: Kernel, *arguments: int, numbers: int = _MANY) -> None:
        """Runs a kernel that computes about so many ``numbers`` to its end: of few on one thread.

        ``arguments`` are integers: sizes, addresses of contiguous memory that outlives the call, or
        ``bits_of`` a float.
        """
        self.run_with(kernel, Arguments(0, 0, *arguments), numbers=numbers)

    def run_with(self, kernel: Kernel, arguments: Any, *, numbers: int = _MANY) -> None:
        """The same with ``Arguments`` that are kept: their counters begin anew."""
        arguments[COUNTERS] = arguments[COUNTERS + 1] = 0
        num_threads = 1
        if numbers > _FEW:
            num_threads = min(self.num_threads, torch.get_num_threads())
        if num_threads == 1:
            (kernel.call if numbers >= _MANY else kernel.call_briefly)(arguments)
        else:
            parallel: Any = self._parallel if numbers >= _MANY else self._brief
            parallel(kernel.address, arguments, num_threads, 0)


@cache
def team_of(num_threads: int) -> ThreadTeam:
    """The one of so many threads."""
    return ThreadTeam(num_threads)


def kept_arguments(numbers: Mapping[int, int]) -> Any:
    """``Arguments`` by their places."""
    arguments = Arguments()
    for place, number in numbers.items():
        arguments[place] = number
    return arguments


class Kernel:
    """A compiled function ``void(int64 *arguments)`` at ``address``; whoever runs it takes tasks
    until there are none.
    """

    def __init__(self, address: int, owner: object) -> None:
        """``owner`` is what the machine code lives as long as."""
        self.address = address
        self.owner = owner
        types = None, ctypes.POINTER(ctypes.c_int64)
        self.call = ctypes.CFUNCTYPE(*types)(address)
        self.call_briefly = ctypes.PYFUNCTYPE(*types)(address)  # keeps the interpreter's lock


@cache
def bits_of(value: float) -> int:
    """A float64 as the integer that has its bits."""
    return ctypes.c_int64.from_buffer(ctypes.c_double(value)).value


def gomp_parallel(kind: type[ctypes.CDLL]) -> Any:
    """libgomp's entry, of the copy that torch has loaded; None where there is none. ``kind``: CDLL,
    or PyDLL, which keeps the interpreter's lock.
    """
    torch_folder = Path(torch.__file__).parent
    copies = [
        *torch_folder.glob("lib/libgomp*"),
        *torch_folder.parent.glob("torch.libs/libgomp*"),  # in wheels for Arm
    ]
    for path in copies:
        try:
            # RTLD_NOLOAD: the copy that is there, never a second one.
            entry = kind(str(path), mode=ctypes.RTLD_LOCAL | 4).GOMP_parallel
        except (OSError, AttributeError):
            continue
        entry.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
        entry.restype = None
        return entry
    return None
