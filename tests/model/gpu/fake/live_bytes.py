"""Bytes of a GPU's tensors, by storage: how many live now, and how many did at most."""

from __future__ import annotations

import weakref

import torch

_ROUNDED_TO = 512  # by torch's caching allocator, which the sums here leave out otherwise


class LiveBytes:
    """Counts a storage from the first tensor seen of it until its last one goes."""

    def __init__(self) -> None:
        self.now = self.peak = 0
        self._sizes: dict[int, int] = {}

    def saw(self, tensor: torch.Tensor) -> None:
        """Counts the tensor's storage unless it is counted already."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._sizes:
            return
        size = -(-storage.nbytes() // _ROUNDED_TO) * _ROUNDED_TO
        self._sizes[key] = size
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._drop, key)

    def held(self, num_bytes: int) -> None:
        """Counts bytes that live for a moment beside what lives now: a kernel's workspace."""
        self.peak = max(self.peak, self.now + num_bytes)

    def reset_peak(self) -> None:
        self.peak = self.now

    def _drop(self, key: int) -> None:
        self.now -= self._sizes.pop(key, 0)
