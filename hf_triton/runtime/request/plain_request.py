"""The forms of a request that tasks read, whatever its origin: ``DirectRequest`` wraps Triton's
object; ``PlainRequest`` holds copies, which hooks may have changed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol

import numpy.typing as npt

from .request_parameters import CALL, call_in, read_parameters

Array = npt.NDArray[Any]


class RequestLike(Protocol):
    def parameters(self) -> str:
        """The request's parameters, a JSON object; empty where there are none."""

    def tensor(self, name: str) -> Array | None:
        """The input of that name, or None; texts are objects of bytes."""

    @property
    def request_id(self) -> str:
        """The id that the client gave the request; empty where it gave none."""


class DirectRequest:
    """Triton's own request; its tensors are valid until ``execute`` returns."""

    def __init__(self, request: Any) -> None:
        self.request_id: str = request.request_id()
        self.parameters: Callable[[], str] = request.parameters
        # pb_utils.get_input_tensor_by_name lists them anew for each name.
        self._tensors = {one.name(): one for one in request.inputs()}

    def tensor(self, name: str) -> Array | None:
        found = self._tensors.get(name)
        return None if found is None else found.as_numpy()


@dataclass(frozen=True)
class PlainRequest:
    """``call`` is what a port says of the request."""

    inputs: Mapping[str, Array]
    parameter_values: Mapping[str, Any]
    request_id: str = ""
    call: str = ""

    def parameters(self) -> str:
        return json.dumps({**self.parameter_values, **({CALL: self.call} if self.call else {})})

    def tensor(self, name: str) -> Array | None:
        return self.inputs.get(name)

    @property
    def num_bytes(self) -> int:
        texts = [array.ravel().tolist() for array in self.inputs.values() if array.dtype == "O"]
        parameters = [value for value in self.parameter_values.values() if isinstance(value, str)]
        return sum(map(len, [*chain.from_iterable(texts), *parameters]))


def read_plain(request: RequestLike, names: Iterable[str]) -> PlainRequest:
    """A copy, because Triton frees its own tensors after ``execute``, with those of the inputs
    ``names`` that the request has. A PlainRequest is returned as it is.
    """
    if isinstance(request, PlainRequest):
        return request
    tensors = ((name, request.tensor(name)) for name in names)
    inputs = {name: tensor.copy() for name, tensor in tensors if tensor is not None}
    parameters = request.parameters()
    call = call_in(parameters)
    values = read_parameters(parameters)
    return PlainRequest(inputs, values, request.request_id, call.text if call else "")
