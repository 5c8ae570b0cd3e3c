"""The curl lines that try out a model, made to fit its config.pbtxt; asks no server."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from generator import model_config
from generator.triton_models import ENGINE_PARAMETER

_SAMPLE_TEXT = "I am going"
_TYPE_STRING = 13  # inference.DataType, model_config.proto
_TYPE_BOOL = 1


def curl_lines(repository: Path, model: str, url: str) -> list[str]:
    """One line for /infer, one for /generate and, of a model that streams, /generate_stream.

    Each has a sample value for each required input, or for the first where none is. ``url`` is the
    server's, down to ``/v2/models``.
    """
    text = (repository / model / "config.pbtxt").read_text(encoding="utf-8")
    config: Any = model_config.parse(text)
    inputs = [tensor for tensor in config.input if not tensor.optional] or config.input[:1]
    infer = {"inputs": [_infer_input(tensor, config.max_batch_size) for tensor in inputs]}
    generate = {tensor.name: _generate_value(tensor) for tensor in inputs}
    lines = [
        f"curl {url}/{model}/infer -d '{json.dumps(infer)}'",
        f"curl {url}/{model}/generate -d '{json.dumps(generate)}'",
    ]
    engine = model_config.parameters(config).get(ENGINE_PARAMETER)
    if engine is not None:
        stream = json.dumps({**generate, "stream": True})
        lines.append(f"curl -N {url}/{engine}/generate_stream -d '{stream}'")
    return lines


def _infer_input(tensor: Any, max_batch_size: int) -> dict[str, object]:
    """The tensor in the JSON of /infer: batched models take a batch dimension first."""
    shape = [max(1, size) for size in tensor.dims]
    return {
        "name": tensor.name,
        "datatype": _datatype(tensor),
        "shape": [1, *shape] if max_batch_size else shape,
        "data": [_sample(tensor)] * math.prod(shape),
    }


def _generate_value(tensor: Any) -> object:
    size = math.prod(max(1, size) for size in tensor.dims)
    return _sample(tensor) if size == 1 else [_sample(tensor)] * size


def _datatype(tensor: Any) -> str:
    """The name that the HTTP API has for it: TYPE_FP32 is FP32, TYPE_STRING is BYTES."""
    name: str = (
        tensor.DESCRIPTOR.fields_by_name["data_type"]
        .enum_type.values_by_number[tensor.data_type]
        .name
    )
    return "BYTES" if tensor.data_type == _TYPE_STRING else name.removeprefix("TYPE_")


def _sample(tensor: Any) -> object:
    if tensor.data_type == _TYPE_STRING:
        return _SAMPLE_TEXT
    return False if tensor.data_type == _TYPE_BOOL else 1
