"""Bounds the memory of the images and sounds of open requests: a small file can become fifty
megabytes of pixels, and requests wait with them.
"""

from __future__ import annotations

import threading

import torch

from hf_triton.runtime.devices.device import free_bytes
from hf_triton.runtime.errors import OverloadedError

_MIB = 2**20


class SourceMemory:
    """Counts bytes; any thread may ask."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._lock = threading.Lock()

    @classmethod
    def of_free(cls) -> SourceMemory:
        """A quarter of the memory that is free now, when the model is loaded."""
        return cls(free_bytes(torch.device("cpu")) // 4)

    def take(self, num_bytes: int) -> None:
        """Counts them; the first are always taken. Raises OverloadedError where it is too much."""
        with self._lock:
            is_too_much = self._num_bytes + num_bytes > self._max_bytes
            if self._num_bytes and num_bytes and is_too_much:
                raise OverloadedError(
                    f"the images and sounds of open requests take {self._num_bytes // _MIB} MiB, "
                    f"of {self._max_bytes // _MIB} allowed: try again later"
                )
            self._num_bytes += num_bytes

    def give(self, num_bytes: int) -> None:
        with self._lock:
            self._num_bytes -= num_bytes
