"""The curl lines that try out a model, made to fit its config.pbtxt; asks no server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from generator.render import model_config
from generator.render.sample_requests import sample_request
from generator.spec.runtime_rules import Value
from generator.spec.triton_models import ENGINE_PARAMETER

_TYPE_STRING = 13  # inference.DataType, model_config.proto


def curl_lines(repository: Path, model: str, url: str, key_variable: str = "") -> list[str]:
    """One line for /infer, one for /generate and, of a model that streams, /generate_stream. One
    that is decoupled itself, as on NVIDIA's vLLM backend, has no /infer.

    Each has a sample value for each input that the model needs. ``url`` is the server's, down to
    ``/v2/models``; ``key_variable`` the shell variable that has a caller's key.
    """
    text = (repository / model / "config.pbtxt").read_text(encoding="utf-8")
    config: Any = model_config.parse(text)
    values = sample_request(repository, model, config)
    tensors = {tensor.name: tensor for tensor in config.input}
    infer = {
        "inputs": [
            infer_input(tensors[name], value, config.max_batch_size)
            for name, value in values.items()
        ]
    }
    is_decoupled = config.model_transaction_policy.decoupled
    engine = model if is_decoupled else model_config.parameters(config).get(ENGINE_PARAMETER)
    key = f' -H "Authorization: Bearer ${key_variable}"' if key_variable else ""
    lines = [] if is_decoupled else [f"curl{key} {url}/{model}/infer -d '{json.dumps(infer)}'"]
    lines.append(f"curl{key} {url}/{model}/generate -d '{json.dumps(values)}'")
    if engine is not None:
        stream = json.dumps({**values, "stream": True})
        lines.append(f"curl -N{key} {url}/{engine}/generate_stream -d '{stream}'")
    return lines


def infer_input(tensor: Any, value: Value, max_batch_size: int) -> dict[str, object]:
    """The tensor in the JSON of /infer: batched models take a batch dimension first."""
    data = value if isinstance(value, list) else [value]
    shape = [len(data)] if len(tensor.dims) == 1 else [max(1, size) for size in tensor.dims]
    return {
        "name": tensor.name,
        "datatype": _datatype(tensor),
        "shape": [1, *shape] if max_batch_size else shape,
        "data": data,
    }


def _datatype(tensor: Any) -> str:
    """The name that the HTTP API has for it: TYPE_FP32 is FP32, TYPE_STRING is BYTES."""
    name: str = (
        tensor.DESCRIPTOR.fields_by_name["data_type"]
        .enum_type.values_by_number[tensor.data_type]
        .name
    )
    return "BYTES" if tensor.data_type == _TYPE_STRING else name.removeprefix("TYPE_")
