"""A request's tensors, taken out of the server's memory, for threads that read them later."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


class HeldRequest:
    """What RequestFields reads of a request, independent of Triton's own object."""

    def __init__(self, request: Any, tensors: Sequence[Any]) -> None:
        self._parameters: str = request.parameters()
        self._tensors = {tensor.name(): _Held(tensor.as_numpy()) for tensor in tensors}

    def parameters(self) -> str:
        """The request's parameters, as JSON."""
        return self._parameters

    def tensor(self, name: str) -> _Held | None:
        """An input, None where the request has none of that name."""
        return self._tensors.get(name)

    @property
    def num_bytes(self) -> int:
        """How much text there is."""
        texts = sum(held.num_bytes for held in self._tensors.values())
        return texts + len(self._parameters)  # a text may be one of them


class _Held:
    def __init__(self, array: Any) -> None:
        # Texts were made anew; numbers are a view of memory that the server takes back.
        self._array = array if array.dtype == np.object_ else array.copy()

    def as_numpy(self) -> Any:
        """The values."""
        return self._array

    @property
    def num_bytes(self) -> int:
        """The length of its texts; 0 for numbers."""
        if self._array.dtype != np.object_:
            return 0
        return sum(map(len, self._array.reshape(-1)))
