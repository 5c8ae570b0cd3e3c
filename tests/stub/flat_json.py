"""Triton's ``/generate``: flat JSON to tensors and parameters, and outputs back to flat JSON.

The rules of 24.10's default schema, read off a real server: a key at the top level or inside
``parameters`` that names a declared input is that tensor, any other a request parameter. JSON that
does not fit a declared type is Triton's own failure, status 500, not 400.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from tritonclient.grpc import model_config_pb2
from wire import Array, Reply, Request, Value

_INT64 = range(-(2**63), 2**63)
_UINT64 = range(2**64)
_NUMPY_TYPES = {"INT32": np.int32, "UINT64": np.uint64, "FP32": np.float32, "BOOL": np.bool_}


class FlatJsonError(Exception):
    """A body that ``/generate`` refuses, with the status that it does so with."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def read(config: Any, body: bytes) -> Request:
    """The request that a body means. Raises FlatJsonError."""
    try:
        # Bytes that are no UTF-8 reach the model as they are.
        members = json.loads(body.decode("utf-8", "surrogateescape"), object_pairs_hook=_Members)
    except ValueError as error:
        raise FlatJsonError(f"failed to parse the request JSON buffer: {error}", 500) from None
    if not isinstance(members, _Members):
        raise FlatJsonError("attempt to get members for non-object", 500)
    reader = _Reader(config)
    for key, value in members:
        if key != "parameters":
            reader.take(key, value)
            continue
        if reader.declares(key):
            clash = "Keyword 'parameters' for nested schema also given as input tensor name"
            raise FlatJsonError(clash, 400)
        if not isinstance(value, _Members):
            raise FlatJsonError("Expected JSON object for keyword: 'parameters'", 500)
        for inner_key, inner_value in value:
            reader.take(inner_key, inner_value)
    return Request(reader.tensors, reader.parameters)


def write(config: Any, reply: Reply) -> dict[str, Any]:
    """The body of a good answer: outputs at the top level, lists of one element unwrapped."""
    body: dict[str, Any] = {"model_name": config.name, "model_version": "1"}
    for name, array in reply.outputs.items():
        values = [x.decode() if isinstance(x, bytes) else x for x in array.flatten().tolist()]
        body[name] = values[0] if len(values) == 1 else values
    return body


class _Members(list[tuple[str, Any]]):
    """A JSON object with its keys in order, one given twice still there twice."""


class _Reader:
    def __init__(self, config: Any) -> None:
        self._declared = {tensor.name: tensor for tensor in config.input}
        self._batched = config.max_batch_size > 0
        self.tensors: dict[str, Array] = {}
        self.parameters: dict[str, Value] = {}

    def declares(self, key: str) -> bool:
        """Whether the model has an input of that name."""
        return key in self._declared

    def take(self, key: str, value: Any) -> None:
        if key in self.tensors:
            raise FlatJsonError(f"input '{key}' already exists in request", 400)
        if key in self._declared:
            self.tensors[key] = self._tensor(key, value)
        elif isinstance(value, str | int | float):
            too_wide = isinstance(value, int) and value not in _INT64
            self.parameters[key] = float(value) if too_wide else value
        else:
            raise FlatJsonError(f"parameter '{key}' has invalid type", 400)

    def _tensor(self, name: str, value: Any) -> Array:
        tensor = self._declared[name]
        data_type = _data_type(tensor)
        values = [_element(data_type, element) for element in _flattened(value)]
        shape = [*([-1] if self._batched else []), *tensor.dims]
        wildcards = [axis for axis, size in enumerate(shape) if size == -1]
        for axis in wildcards:  # the last takes all elements, those before it are 1
            shape[axis] = len(values) if axis == wildcards[-1] else 1
        if not wildcards and len(values) != int(np.prod(shape)):
            message = f"The schema can not convert input '{name}' to tensor with proper shape"
            raise FlatJsonError(message, 400)
        return np.array(values, dtype=_NUMPY_TYPES.get(data_type, np.object_)).reshape(shape)


def _data_type(tensor: Any) -> str:
    name: str = model_config_pb2.DataType.Name(tensor.data_type)
    return name.removeprefix("TYPE_")


def _flattened(value: Any) -> list[Any]:
    if isinstance(value, list) and not isinstance(value, _Members):
        return [element for item in value for element in _flattened(item)]
    return [value]


def _element(data_type: str, value: Any) -> Any:
    """One element, read as rapidjson's typed getters do; a wide integer loses its high bits."""
    is_int = isinstance(value, int) and not isinstance(value, bool)
    if data_type == "INT32" and is_int and value in _INT64:
        return np.int64(value).astype(np.int32)
    if data_type == "UINT64" and is_int and value in _UINT64:
        return value
    if data_type == "FP32" and isinstance(value, int | float) and not isinstance(value, bool):
        with np.errstate(over="ignore"):
            return np.float64(value).astype(np.float32)
    if data_type == "BOOL" and isinstance(value, bool):
        return value
    if data_type == "STRING" and isinstance(value, str):
        return _bytes(value)
    raise FlatJsonError(f"Unable to parse 'data': attempt to access JSON as {data_type}", 500)


def _bytes(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise FlatJsonError("The surrogate pair in string is invalid", 500) from None


def body_bytes(body: Mapping[str, Any] | bytes) -> bytes:
    """A body as it is sent."""
    return body if isinstance(body, bytes) else json.dumps(body).encode()
