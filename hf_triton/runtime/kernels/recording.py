"""Records what a computation runs, to run it again without the Python between.

On a processor what a CUDA graph is on a GPU: the same kernels on the same memory. For a short text
Python takes as long as half of the kernels: after each matrix product nothing of it is left in the
processor's caches.
"""

from __future__ import annotations

import ctypes
import math
import weakref
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Hashable
from functools import partial
from itertools import chain, groupby
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.overrides import TorchFunctionMode, resolve_name

from .kernel_loading import RUN_KERNELS, load_kernel
from .thread_team import Arguments, Kernel, Run, gomp_parallel, recorded_runs

_ALLOCATING = ("torch.empty", "torch.empty_like", "torch.Tensor.new_empty")
# What returns no tensor, and reads no numbers.
_SIZES = (
    *("__get__", "__len__", "data_ptr", "dim", "element_size", "is_contiguous", "numel", "size"),
    "stride",
)
_LEAST_BYTES = 2**12
_MOST_KEPT = 256  # of 10 to 50 KB each

Compute = Callable[[torch.Tensor], torch.Tensor]


class NotRecordableError(Exception):
    """A computation does what can't be recorded; says what."""


class Pool:
    """Memory for what recordings make. What is no longer used is given out again, in the same
    recording and in later ones: they can't run at once.
    """

    def __init__(self) -> None:
        self._free: dict[int, list[npt.NDArray[np.uint8]]] = defaultdict(list)
        self._pieces: dict[int, npt.NDArray[np.uint8]] = {}

    @property
    def num_bytes(self) -> int:
        return sum(piece.nbytes for piece in self._pieces.values())

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Its memory is given out again when no tensor has it any more."""
        num_bytes = math.prod(shape) * dtype.itemsize
        size = max(_LEAST_BYTES, 1 << (num_bytes - 1).bit_length())
        free = self._free[size]
        if not free:
            piece = torch.zeros(size, dtype=torch.uint8).numpy()
            self._pieces[piece.ctypes.data] = piece
            free.append(piece)
        piece = free.pop()
        lent = piece[:num_bytes]
        weakref.finalize(lent, free.append, piece)
        return torch.from_numpy(lent).view(dtype).view(shape)

    def has(self, tensor: torch.Tensor) -> bool:
        """Whether it lies in this memory."""
        return _address(tensor) in self._pieces

    def unowned(self, value: Any) -> Any:
        """A tensor of this memory, or lists of some, such that they don't keep it."""
        if isinstance(value, list | tuple):
            return type(value)(map(self.unowned, value))
        if not isinstance(value, torch.Tensor) or not self.has(value):
            return value
        whole = torch.from_numpy(self._pieces[_address(value)])
        whole = whole[: whole.numel() // value.itemsize * value.itemsize].view(value.dtype)
        return whole.as_strided(value.shape, value.stride(), value.storage_offset())


class Recording:
    """What a computation of ``x`` runs, in order: kernels, and operators of torch. Tensors that it
    does not make itself are kept, and must not change.
    """

    def __init__(self, compute: Compute, x: torch.Tensor, pool: Pool) -> None:
        """Computes ``x``. Raises NotRecordableError."""
        given = pool.empty(tuple(x.shape), x.dtype).copy_(x)
        with recorded_runs() as runs:
            watch = _Watch(pool, runs)
            with watch:
                made = compute(given)
        if not pool.has(made):
            raise NotRecordableError("its result is not its own")
        self._input, self._output = pool.unowned(given), pool.unowned(made)
        self._kept = watch.kept, runs
        self._steps = [
            step
            for are_kernels, some in groupby(runs, lambda run: isinstance(run, tuple))
            for step in ([_one_after_another([*some])] if are_kernels else some)
        ]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """What is computed of another ``x`` of the same shape and dtype."""
        self._input.copy_(x)
        for step in self._steps:
            step()
        return self.output()

    def output(self) -> torch.Tensor:
        """What was computed last, by this or while it was recorded, if no other ran since."""
        copied: torch.Tensor = self._output.clone()
        return copied


class Recordings:
    """Of the computations that were asked for last, by what tells them apart."""

    def __init__(self) -> None:
        self._pool = Pool()
        self._found: OrderedDict[Hashable, Recording | None] = OrderedDict()
        self._refused: set[Hashable] = set()

    def get(self, key: Hashable) -> Recording | None:
        if key in self._found:
            self._found.move_to_end(key)
        return self._found.get(key)

    def compute(self, key: Hashable, compute: Compute, x: torch.Tensor) -> torch.Tensor:
        """``compute(x)``, which may change ``x``; recorded where it is asked for once more."""
        if key in self._refused:
            return compute(x)
        if key not in self._found:
            self._found[key] = None
            if len(self._found) > _MOST_KEPT:
                self._found.popitem(last=False)
            return compute(x)
        try:
            recording = Recording(compute, x, self._pool)
        except NotRecordableError:
            self._refused.add(key)
            return compute(x)
        self._found[key] = recording
        return recording.output()


class _Watch(TorchFunctionMode):
    """Adds to ``runs`` what torch computes, into a pool's memory. ``kept``: tensors that lie
    elsewhere and whose addresses were asked for.
    """

    def __init__(self, pool: Pool, runs: list[Run | Callable[[], object]]) -> None:
        super().__init__()
        self._pool, self._runs = pool, runs
        self.kept: list[torch.Tensor] = []

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name, named = resolve_name(func) or str(func), kwargs or {}
        result = func(*args, **named)
        if name in _ALLOCATING:
            return self._pool.empty(tuple(result.shape), result.dtype)
        if name.rpartition(".")[2] in _SIZES:
            if name.endswith("data_ptr") and not self._pool.has(args[0]):
                self.kept.append(args[0])
            return result
        if _is_view(result, args[0]) and (result is not args[0] or not name.endswith("_")):
            return result
        if not isinstance(result, torch.Tensor):
            raise NotRecordableError(f"it calls {name}")
        again = partial(func, *self._pool.unowned(args), **named)
        if result is args[0]:
            self._runs.append(again)
            return result
        out = self._pool.empty(tuple(result.shape), result.dtype).copy_(result)
        to = self._pool.unowned(out)
        self._runs.append(lambda: to.copy_(again()))
        return out


def _is_view(result: Any, tensor: Any) -> bool:
    """Whether a result, or each of several, is another look at a tensor's memory."""
    views = result if isinstance(result, tuple | list) else (result,)
    return isinstance(tensor, torch.Tensor) and all(
        isinstance(view, torch.Tensor) and _address(view) == _address(tensor) for view in views
    )


def _address(tensor: torch.Tensor) -> int:
    """Where its memory begins; 0 of a weight in a layout of oneDNN's, which does not say."""
    return tensor.untyped_storage().data_ptr() if tensor.layout == torch.strided else 0


def _one_after_another(runs: list[Run]) -> Callable[[], object]:
    """Runs kernels with their arguments, which must be kept."""
    rows = [(one.address, ctypes.addressof(values), threads) for one, values, threads in runs]
    table = (ctypes.c_int64 * (3 * len(rows)))(*chain.from_iterable(rows))
    team = ctypes.cast(gomp_parallel(), ctypes.c_void_p).value or 0
    run = load_kernel("run", "int64", RUN_KERNELS)
    arguments = Arguments(0, 0, len(rows), ctypes.addressof(table), team)
    return partial(_run, run, arguments, table)


def _run(kernel: Kernel, arguments: object, kept: object) -> None:
    kernel.call(arguments)
