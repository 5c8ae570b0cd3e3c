"""A request as bytes: HTTP messages and gRPC's. Sends nothing."""

from __future__ import annotations

import json
import random
import struct
from typing import Any

from tritonclient.grpc import service_pb2

from perf.soak.damage import BODY_DAMAGE, GRPC_DAMAGE, HTTP_DAMAGE
from perf.soak.request import Fields, HttpMessage, SoakRequest, Tensor, fields_of

_FORMATS = {"INT32": "<i", "FP32": "<f", "UINT64": "<Q", "BOOL": "<?"}


def http_message(request: SoakRequest) -> HttpMessage:
    """``/infer`` with tensors, or one of ``/generate``'s flat JSON."""
    fields = fields_of(request)
    make = _infer_body if request.way == "infer" else _flat_body
    body = make(request, fields)
    path = f"/v2/models/{request.served_name}/{request.way}"
    if request.damage in BODY_DAMAGE:
        body = BODY_DAMAGE[request.damage](body)
    text = json.dumps(body, ensure_ascii=request.number % 2 == 0)
    message = HttpMessage(path, text.encode("utf-8", "surrogateescape"))
    if request.damage in HTTP_DAMAGE:
        message = HTTP_DAMAGE[request.damage].change(message)
    return message


def grpc_message(request: SoakRequest) -> Any:
    """A ModelInferRequest."""
    fields = fields_of(request)
    message = service_pb2.ModelInferRequest(
        model_name=request.served_name, id=f"soak-{request.number}"
    )
    for name, tensor in fields.tensors.items():
        shape = _shape(request, tensor)
        message.inputs.add(name=name, datatype=tensor.data_type, shape=shape)
        message.raw_input_contents.append(_raw(tensor))
    for name, value in fields.parameters.items():
        _set_parameter(message.parameters[name], value)
    for name in request.outputs:
        message.outputs.add(name=name)
    if request.way == "grpc_stream":
        message.parameters["triton_enable_empty_final_response"].bool_param = True
    if request.damage in GRPC_DAMAGE:
        GRPC_DAMAGE[request.damage](message)
    return message


def _shape(request: SoakRequest, tensor: Tensor) -> list[int]:
    width = len(tensor.rows[0])
    return [len(tensor.rows), width] if request.batched else [width]


def _flat(tensor: Tensor) -> list[Any]:
    return [value for row in tensor.rows for value in row]


def _infer_body(request: SoakRequest, fields: Fields) -> dict[str, Any]:
    inputs = [
        {
            "name": name,
            "datatype": tensor.data_type,
            "shape": _shape(request, tensor),
            "data": _flat(tensor),
        }
        for name, tensor in fields.tensors.items()
    ]
    body: dict[str, Any] = {"id": f"soak-{request.number}", "inputs": inputs}
    if fields.parameters:
        body["parameters"] = fields.parameters
    if request.outputs:
        body["outputs"] = [{"name": name} for name in request.outputs]
    return body


def _flat_body(request: SoakRequest, fields: Fields) -> dict[str, Any]:
    """Half of the options at the top, half among the parameters: both mean the same."""
    body: dict[str, Any] = {}
    inside: dict[str, Any] = {}
    rng = random.Random(request.number)
    for name, tensor in fields.tensors.items():
        values = _flat(tensor)
        value = values[0] if len(values) == 1 and rng.random() < 0.7 else values
        (inside if rng.random() < 0.3 and len(values) == 1 and value is not values else body)[
            name
        ] = value
    for name, value in fields.parameters.items():
        (inside if rng.random() < 0.5 else body)[name] = value
    return {**body, "parameters": inside} if inside else body


def _raw(tensor: Tensor) -> bytes:
    if tensor.data_type == "BYTES":
        texts = [value.encode("utf-8", "surrogateescape") for value in _flat(tensor)]
        return b"".join(struct.pack("<I", len(text)) + text for text in texts)
    return b"".join(struct.pack(_FORMATS[tensor.data_type], value) for value in _flat(tensor))


def _set_parameter(parameter: Any, value: Any) -> None:
    if isinstance(value, bool):
        parameter.bool_param = value
    elif isinstance(value, int):
        parameter.int64_param = value
    elif isinstance(value, float):
        parameter.double_param = value
    else:
        parameter.string_param = str(value)
