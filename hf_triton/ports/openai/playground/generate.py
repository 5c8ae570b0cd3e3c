"""``/v2/models/NAME/generate`` as Triton has it: one request of named values, for a model of any
task. Values become the tensors that the model's configuration declares
(https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_generate.md).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from typing import Any

from tritonclient.grpc import model_config_pb2

from hf_triton.ports.openai.schema.errors import ApiError, bad_field
from hf_triton.ports.openai.schema.json_body import kind_of, short
from hf_triton.ports.openai.triton.tensors import new_request, outputs_of, pack_texts, read_texts

# Of struct, little-endian.
_FORMATS = {
    "BOOL": "?",
    "FP16": "e",
    "FP32": "f",
    "FP64": "d",
    "INT8": "b",
    "INT16": "h",
    "INT32": "i",
    "INT64": "q",
    "UINT8": "B",
    "UINT16": "H",
    "UINT32": "I",
    "UINT64": "Q",
}


def datatype(tensor: Any) -> str:
    """Of a ModelInput or ModelOutput, as requests name it."""
    name: str = model_config_pb2.DataType.Name(tensor.data_type).removeprefix("TYPE_")
    return "BYTES" if name == "STRING" else name


def infer_request(
    config: Any, values: Mapping[str, Any], request_id: str, caller: Mapping[str, str]
) -> Any:
    """A ModelInferRequest of one row. Raises ApiError, 400, about what the model does not take."""
    request = new_request(config.name, request_id, ())
    declared = {tensor.name: tensor for tensor in config.input}
    for name, value in values.items():
        if name not in declared:
            raise ApiError(400, f"{short(name)}: unknown, allowed: {', '.join(declared)}", name)
        tensor = declared[name]
        elements = value if isinstance(value, list) else [value]
        is_whole = min(tensor.dims, default=1) > 0 and math.prod(tensor.dims) == len(elements)
        shape = list(tensor.dims) if is_whole else [len(elements)]
        batch = [1] if config.max_batch_size else []
        request.inputs.add(name=name, datatype=datatype(tensor), shape=batch + shape)
        request.raw_input_contents.append(_packed(name, datatype(tensor), elements))
    for name, text in caller.items():
        request.parameters[name].string_param = text
    return request


def answer(response: Any) -> dict[str, Any]:
    """A ModelInferResponse as JSON: each output by its name, a list where it has many elements."""
    data = outputs_of(response, ())
    found = {"model_name": response.model_name, "model_version": response.model_version}
    for output in response.outputs:
        elements = _unpacked(output.datatype, data[output.name])
        found[output.name] = elements[0] if len(elements) == 1 else elements
    return found


def _packed(name: str, of_type: str, elements: list[Any]) -> bytes:
    if of_type == "BYTES":
        for element in elements:
            if not isinstance(element, str):
                raise bad_field(name, kind_of(element), "a text or a list of texts")
        return pack_texts(elements)
    if of_type not in _FORMATS:
        raise ApiError(400, f"{name}: {of_type} can't be sent as JSON, use gRPC", name)
    allowed = _allowed(of_type)
    for element in elements:
        if not isinstance(element, allowed) or isinstance(element, bool) != (of_type == "BOOL"):
            raise bad_field(name, kind_of(element), f"{of_type}, or a list of them")
    try:
        return struct.pack(f"<{len(elements)}{_FORMATS[of_type]}", *elements)
    except (struct.error, OverflowError):
        raise bad_field(name, "a number beyond it", f"what {of_type} holds") from None


def _allowed(of_type: str) -> tuple[type, ...]:
    if of_type == "BOOL":
        return (bool,)
    return (int, float) if of_type.startswith("FP") else (int,)


def _unpacked(of_type: str, data: bytes) -> list[Any]:
    if of_type == "BYTES":
        return read_texts(data)
    if of_type not in _FORMATS:
        raise ApiError(501, f"the answer has {of_type}, which JSON can't show; use gRPC")
    values = [value for (value,) in struct.iter_unpack("<" + _FORMATS[of_type], data)]
    return [value if math.isfinite(value) else None for value in values]
