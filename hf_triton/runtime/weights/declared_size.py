"""Compares the model that a configuration describes with its weight files while it is built: counts
requested tensors and refuses those that exceed the files. A configuration with a thousand times as
many layers, or tables of a billion positions, would otherwise fill memory.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch.overrides import TorchFunctionMode

from ..errors import LoadError, reason

_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
# A byte of a file holds four weights of 2 bits, and some models make a shared table several times
# before they tie it.
_ELEMENTS_OF_A_BYTE = 8
_TIMES_UNPACKED = 8  # blocks of GGUF become numbers in several steps
_ALWAYS = 2**26  # elements: tables of positions and masks, heads that a file may lack
_MOST_TENSORS = 500_000
_DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}  # safetensors' names
_SIZED = (torch.empty, torch.zeros, torch.ones, torch.rand, torch.randn)
_OF_ALL_PAIRS = (torch.meshgrid, torch.einsum, torch.outer, torch.cartesian_prod, torch.kron)


class WithinFiles(TorchFunctionMode):
    """While it is entered, this thread makes no more and no larger tensors than the model whose
    files lie in a folder can need. Raises LoadError where the weights themselves are broken.
    """

    def __init__(self, files: Path) -> None:
        super().__init__()
        check_headers(files)
        self._num_bytes = weight_bytes(files)
        self._config = next((path.name for path in files.rglob("*.gguf")), "config.json")
        times = 1 if self._config == "config.json" else _TIMES_UNPACKED
        self._left = self._num_bytes * _ELEMENTS_OF_A_BYTE * times + _ALWAYS
        self._num_left = _MOST_TENSORS

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Raises LoadError before ``func`` makes a tensor that is too large."""
        kwargs = kwargs or {}
        with suppress(TypeError, ValueError, RuntimeError):  # func reports the wrong arguments
            self._count(num_made(func, args, kwargs))
        return func(*args, **kwargs)

    def _count(self, made: int) -> None:
        if made > 0:
            self._left -= made
            self._num_left -= 1
        at_once = self._num_bytes + _ALWAYS - made
        if min(at_once, self._left, self._num_left) < 0:
            raise LoadError(
                f"{self._config}: the model that it describes is many times larger than its "
                f"weights, which are {self._num_bytes} bytes"
            )


def check_headers(files: Path) -> None:
    """Raises LoadError for a file of safetensors in the folder that is not whole, or for more
    tensors than a model has.
    """
    num_tensors = 0
    for path in sorted(files.glob("*.safetensors")):
        try:
            with safe_open(path, framework="pt") as file:
                num_tensors += len(file.keys())
        except (SafetensorError, OSError, MemoryError) as error:
            raise LoadError(f"{path.name}: {reason(error)}") from None
        if num_tensors > _MOST_TENSORS:
            raise LoadError(
                f"{path.name}: got {num_tensors} tensors up to here, allowed: {_MOST_TENSORS}"
            )


def weight_bytes(files: Path) -> int:
    """The size of all files of weights in a model's folder."""
    return sum(
        Path(parent, name).stat().st_size
        for parent, _, names in os.walk(files)
        for name in names
        if name.endswith(_WEIGHTS) and Path(parent, name).is_file()
    )


def saved_dtype(files: Path) -> torch.dtype | None:
    """The dtype of the first numbers that the folder's files of safetensors hold."""
    for path in sorted(files.glob("*.safetensors")):
        with suppress(SafetensorError, OSError, MemoryError), safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118
                found = _DTYPES.get(file.get_slice(name).get_dtype())
                if found is not None:
                    return found
    return None


def num_made(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """How many elements a function of torch makes a tensor of, before it does; 0 for those that
    make none larger than what they are given.
    """
    if func in _SIZED or func is torch.full:
        size = kwargs.get("size", args[:1] if func is torch.full else args)
        return math.prod(_numbers(size))
    if func is torch.arange:
        start, end, step = _range(args, kwargs)
        return int(abs((end - start) / (step or 1)))
    if func is torch.linspace:
        return int(kwargs.get("steps", args[2] if len(args) > 2 else 0))
    if func is torch.eye:
        rows = int(kwargs.get("n", args[0] if args else 0))
        return rows * int(kwargs.get("m", args[1] if len(args) > 1 else rows))
    shapes = [one.shape for one in _tensors(args)]
    if func in _OF_ALL_PAIRS:
        return math.prod(map(math.prod, shapes))
    return _num_broadcast(shapes) if len(shapes) > 1 else 0


def _num_broadcast(shapes: list[torch.Size]) -> int:
    """The elements of an element-wise result with the tensors' common shape; 0 where it is no
    larger than one of them. torch's own function would import its operators on meta tensors.
    """
    axes = [{*axis} for axis in zip_longest(*(shape[::-1] for shape in shapes), fillvalue=1)]
    if any(len(axis - {1}) > 1 for axis in axes):
        return 0
    common = math.prod(map(max, axes))
    return common if common > max(map(math.prod, shapes)) else 0


def _range(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[float, float, float]:
    given = dict(zip(("end",) if len(args) == 1 else ("start", "end", "step"), args, strict=False))
    given.update(kwargs)
    return float(given.get("start", 0)), float(given.get("end", 0)), float(given.get("step", 1))


def _numbers(size: Any) -> list[int]:
    if isinstance(size, tuple | list):
        return [number for one in size for number in _numbers(one)]
    return [int(size)]


def _tensors(args: Any) -> list[torch.Tensor]:
    found = []
    for one in args:
        if isinstance(one, torch.Tensor):
            found.append(one)
        elif isinstance(one, tuple | list):
            found += _tensors(one)
    return found
