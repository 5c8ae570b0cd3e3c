"""A guard for CUDA devices that does nothing, for torch's CPU build.

Indexing a tensor asks for its device's guard (c10/core/impl/DeviceGuardImplInterface.h), and a CPU
build has none for CUDA. FakeTensors need none: Meta's, which does nothing, is put in its place.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

_CUDA, _META = 1, 14  # c10/core/DeviceType.h


@contextmanager
def no_device_guard() -> Iterator[None]:
    """CUDA's guard does nothing for as long as this lasts; one that is there is left alone."""
    library = Path(torch.__file__).parent / "lib" / "libc10.so"
    registry = (ctypes.c_void_p * 32).in_dll(
        ctypes.CDLL(str(library)), "_ZN3c104impl26device_guard_impl_registryE"
    )
    assert registry[_META], "torch has no guard for meta tensors"
    before = registry[_CUDA]
    if not before:
        registry[_CUDA] = registry[_META]
    try:
        yield
    finally:
        registry[_CUDA] = before
