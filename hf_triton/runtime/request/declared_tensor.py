"""The tensors that a model's config.pbtxt declares; converts values to their type and shape."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Shape = tuple[int, ...]

_INTEGERS = [f"{sign}INT{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64)]
_TYPES: dict[str, Any] = {
    "TYPE_STRING": np.dtype(np.object_),
    "TYPE_BOOL": np.dtype(np.bool_),
    **{f"TYPE_{name}": np.dtype(name.lower()) for name in _INTEGERS},
    **{f"TYPE_FP{bits}": np.dtype(f"float{bits}") for bits in (16, 32, 64)},
}
DTYPES = {dtype.str: dtype for dtype in _TYPES.values() if dtype != np.object_}
BYTES = "bytes"  # the type of texts
# The kinds of numbers that a declared kind accepts, by numpy's letters (dtype.kind).
_ACCEPTED_KINDS = {"b": "b", "i": "iu", "u": "iu", "f": "iuf"}


@dataclass(frozen=True)
class DeclaredTensor:
    """One input or output. ``dims`` leave out the batch dimension; -1 is any size."""

    data_type: str
    dims: Shape

    def array(self, value: Any, num_rows: int | None, previous: Shape | None = None) -> Array:
        """Converts an array, one value or a flat list to the declared type and shape.

        ``num_rows`` is the batch dimension's size, None if the model has none. ``previous`` is the
        shape that the tensor had before: some tasks answer in another one than config.pbtxt
        declares, flat or nested, and that one is accepted too. Raises ValueError: it does not fit;
        the text says what was got and what is allowed.
        """
        array = self._with_type(value)
        declared = self.dims if num_rows is None else (num_rows, *self.dims)
        accepted = [declared]
        if previous:
            accepted.append((*previous[:-1], -1 if self.dims[-1:] == (-1,) else previous[-1]))
        if any(_fits(array.shape, one) for one in accepted):
            return array
        if array.ndim > 1:
            raise ValueError(f"got shape {list(array.shape)}, allowed: {list(declared)}")
        try:
            return array.reshape(declared)
        except ValueError:
            got = f"{array.size} value{'s' * (array.size != 1)}"
            raise ValueError(f"got {got}, allowed: shape {list(declared)}") from None

    def _with_type(self, value: Any) -> Array:
        wanted = _TYPES[self.data_type]
        if wanted == np.object_:
            return _texts(value)
        array = np.asarray(value)
        if array.dtype.kind not in _ACCEPTED_KINDS[wanted.kind]:
            got = type(value).__name__ if array.dtype.kind in "OUS" else array.dtype.name
            raise ValueError(f"got {got}, allowed: {wanted.name}")
        if wanted.kind in "iu" and array.size:
            limits = np.iinfo(wanted)
            if int(array.min()) < limits.min or int(array.max()) > limits.max:
                raise ValueError(f"got a number that {wanted.name} can't hold")
        return array.astype(wanted, copy=False)


def declared_tensors(tensors: Iterable[Mapping[str, Any]]) -> dict[str, DeclaredTensor]:
    """The tensors by name; ``tensors`` is ``input`` or ``output`` of the model's configuration."""
    return {
        one["name"]: DeclaredTensor(one["data_type"], tuple(map(int, one["dims"])))
        for one in tensors
    }


def described(array: Array) -> tuple[str, Sequence[int], bytes | list[bytes]]:
    """A tensor's type, shape and data. Raises KeyError for another type of numbers."""
    if array.dtype == np.object_:
        elements = array.reshape(-1).tolist()
        texts = [one.encode() if isinstance(one, str) else one for one in elements]
        return BYTES, array.shape, texts
    # A type that the reader does not know would end the connection.
    return DTYPES[array.dtype.str].str, array.shape, array.tobytes()


def _fits(shape: Shape, declared: Shape) -> bool:
    """True if a shape matches the declared one, in which -1 is any size."""
    return len(shape) == len(declared) and all(
        wanted in (-1, got) for got, wanted in zip(shape, declared, strict=True)
    )


def _texts(value: Any) -> Array:
    """Texts as an array of bytes: of the same shape as an array, else flat."""
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
