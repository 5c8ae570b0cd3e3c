"""The tensors that a model's config.pbtxt declares, and values put into their type and shape.

Knows nothing of requests: hooks.py uses it for both, what comes in and what goes out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Shape = tuple[int, ...]

_WHOLE = [f"{sign}INT{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64)]
_TYPES: dict[str, Any] = {
    "TYPE_STRING": np.dtype(np.object_),
    "TYPE_BOOL": np.dtype(np.bool_),
    **{f"TYPE_{name}": np.dtype(name.lower()) for name in _WHOLE},
    **{f"TYPE_FP{bits}": np.dtype(f"float{bits}") for bits in (16, 32, 64)},
}
_MADE_OF = {"b": "b", "i": "iu", "u": "iu", "f": "iuf"}  # numpy's letters for kinds of numbers


@dataclass(frozen=True)
class Declared:
    """One input or output. ``dims`` are without the batch dimension; -1 is any size."""

    name: str
    data_type: str
    dims: Shape

    def array(self, value: Any, num_rows: int | None, had: Shape | None = None) -> Array:
        """``value`` in the declared type and shape: an array, or one value, or a flat list.

        ``num_rows`` is the batch dimension's size, None where the model has none. ``had`` is the
        shape that the tensor had before, which may be another where a task answers flat or nested.

        Raises:
            ValueError: it doesn't fit; the text says what was got and what is allowed.
        """
        array = self.typed(value)
        declared = self.dims if num_rows is None else (num_rows, *self.dims)
        if fits(array.shape, declared) or self._is_like(array.shape, had):
            return array
        if array.ndim > 1:
            raise ValueError(f"got shape {list(array.shape)}, allowed: {list(declared)}")
        try:
            return array.reshape(declared)
        except ValueError:
            got = f"{array.size} value{'s' * (array.size != 1)}"
            raise ValueError(f"got {got}, allowed: shape {list(declared)}") from None

    def typed(self, value: Any) -> Array:
        """``value`` in the declared type, texts as bytes. Raises ValueError."""
        wanted = _TYPES[self.data_type]
        if wanted == np.object_:
            return _texts(value)
        array = np.asarray(value)
        if array.dtype.kind not in _MADE_OF[wanted.kind]:
            got = type(value).__name__ if array.dtype.kind in "OUS" else array.dtype.name
            raise ValueError(f"got {got}, allowed: {wanted.name}")
        if wanted.kind in "iu" and array.size:
            limits = np.iinfo(wanted)
            if int(array.min()) < limits.min or int(array.max()) > limits.max:
                raise ValueError(f"got a number that {wanted.name} can't hold")
        return array.astype(wanted, copy=False)

    def _is_like(self, shape: Shape, had: Shape | None) -> bool:
        if had is None or not had or len(shape) != len(had):
            return False
        return shape[:-1] == had[:-1] and (shape[-1] == had[-1] or self.dims[-1:] == (-1,))


def declared_tensors(tensors: Iterable[Mapping[str, Any]]) -> dict[str, Declared]:
    """By name, from ``input`` or ``output`` of a model's configuration as Triton hands it over."""
    return {
        tensor["name"]: Declared(
            tensor["name"], tensor["data_type"], tuple(int(size) for size in tensor["dims"])
        )
        for tensor in tensors
    }


def fits(shape: Shape, declared: Shape) -> bool:
    """Whether a shape is one of those that are declared; -1 is any size."""
    return len(shape) == len(declared) and all(
        wanted in (-1, got) for got, wanted in zip(shape, declared, strict=True)
    )


def _texts(value: Any) -> Array:
    """Texts as bytes, in the shape that an array has, else flat."""
    shape = value.shape if isinstance(value, np.ndarray) else (-1,)
    items = value.reshape(-1).tolist() if isinstance(value, np.ndarray) else value
    items = [items] if isinstance(items, str | bytes) else items
    if not isinstance(items, list | tuple):
        raise ValueError(f"got {type(value).__name__}, allowed: a text or a list of texts")
    array = np.empty(len(items), dtype=np.object_)
    for index, item in enumerate(items):
        if not isinstance(item, str | bytes):
            raise ValueError(f"got {type(item).__name__} in it, allowed: texts")
        array[index] = item.encode() if isinstance(item, str) else item
    return array.reshape(shape)
