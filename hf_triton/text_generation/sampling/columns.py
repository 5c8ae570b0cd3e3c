"""Lists of numbers on their way to a device, many in one copy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from hf_triton.runtime.devices import device as devices


@dataclass(frozen=True)
class Column:
    """Where a list lies, and its shape; ``is_float`` where its elements are float32's bits."""

    start: int
    shape: tuple[int, ...]
    is_float: bool

    def __bool__(self) -> bool:
        return self.shape[0] > 0


# What is computed from at once where copies of it are made: 32 MiB in float32.
MOST_LOGITS = 2**23
NOTHING = np.zeros(0, dtype=np.int32)
_EMPTY = Column(0, (0,), is_float=False)


class Columns:
    """Puts lists of whole numbers and of others into one int32 array, one after the other."""

    def __init__(self) -> None:
        self._lists: list[npt.NDArray[np.int32]] = []
        self._size = 0

    def ints(self, values: Any) -> Column:
        """Adds whole numbers within int32's range, of any shape."""
        return self._add(np.asarray(values, dtype=np.int32), is_float=False)

    def floats(self, values: Any) -> Column:
        """Adds numbers, rounded to float32."""
        return self._add(np.asarray(values, dtype=np.float32), is_float=True)

    def array(self) -> npt.NDArray[np.int32]:
        """All of them, (size,)."""
        return np.concatenate(self._lists) if self._lists else NOTHING

    def _add(self, numbers: npt.NDArray[Any], *, is_float: bool) -> Column:
        if not numbers.size:
            return _EMPTY
        column = Column(self._size, numbers.shape, is_float)
        self._lists.append(numbers.reshape(-1).view(np.int32))
        self._size += numbers.size
        return column


class DeviceColumns:
    """The same lists on a device: whole numbers as int64, as indices are, the others as float32."""

    def __init__(self, array: torch.Tensor) -> None:
        """array (size,) int32."""
        if len(array):
            self._floats, self._ints = array.view(torch.float32), array.long()

    def __getitem__(self, column: Column) -> torch.Tensor:
        """The numbers of a column that is not empty."""
        numbers = self._floats if column.is_float else self._ints
        return numbers[column.start : column.start + math.prod(column.shape)].view(column.shape)


def to_device(array: npt.NDArray[np.int32], device: torch.device) -> torch.Tensor:
    """array (size,) -> the same on the device; nobody waits for a GPU to copy it."""
    return devices.to_device(torch.from_numpy(array), device)
