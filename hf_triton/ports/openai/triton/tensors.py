"""Triton's gRPC messages: inputs to bytes, outputs from bytes.

Made by hand rather than with tritonclient's classes, which need numpy. BYTES elements have their
length before them, 4 bytes little-endian.
https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_binary_data.md
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tritonclient.grpc import service_pb2

from generator.render import model_config
from generator.spec.triton_models import (
    ADAPTERS_PARAMETER,
    ENGINE_SUFFIX,
    ROLE_PARAMETER,
    SERVED_NAMES_PARAMETER,
    TASK_PARAMETER,
)
from hf_triton.ports.openai.schema.errors import ApiError
from hf_triton.ports.openai.schema.request import USER, TensorValue
from hf_triton.runtime.request.request_parameters import CACHE_SALT, CALLER, TOKENIZER_QUESTION

_PARAMETERS = (USER, CACHE_SALT, CALLER, TOKENIZER_QUESTION)
# Formats of struct, little-endian.
_INTEGERS = ("INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64")
FORMATS = dict(zip(("BOOL", "FP16", "FP32", "FP64", *_INTEGERS), "?efdbhiqBHIQ", strict=True))
_DATATYPES = {bool: "BOOL", int: "INT32", float: "FP32", str: "BYTES", bytes: "BYTES"}
OUTPUTS = ("text_output", "finish_reason", "num_input_tokens", "num_output_tokens")


@dataclass(frozen=True)
class Chunk:
    """One response: an element per choice in each list."""

    texts: list[str]
    finish_reasons: list[str]  # "" while a choice goes on
    num_input_tokens: int
    num_output_tokens: list[int]  # since the last chunk
    logprobs: list[str]  # empty where they were not asked for
    prompt_logprobs: str = ""  # with the first response
    num_cached_tokens: int | None = None
    chat_format: str = ""

    @property
    def num_bytes(self) -> int:
        return len(self.prompt_logprobs) + sum(map(len, self.logprobs))


def infer_request(
    model: ServedModel,
    request_id: str,
    inputs: Mapping[str, TensorValue],
    outputs: Iterable[str],
) -> Any:
    """A ModelInferRequest of one row; the inputs of ``_PARAMETERS`` are parameters."""
    own = {name: str(value) for name, value in inputs.items() if name in _PARAMETERS}
    request = new_request(model.triton_name, request_id, outputs, own)
    for name, value in inputs.items():
        if name in own:
            continue
        datatype, data = pack_value(value)
        size = len(value) if isinstance(value, list | tuple) else 1
        shape = [1, size] if model.is_batched else [size]
        add_input(request, name, datatype, shape, data)
    return request


def new_request(
    model: str, request_id: str, outputs: Iterable[str], parameters: Mapping[str, str]
) -> Any:
    request = service_pb2.ModelInferRequest(model_name=model, id=request_id)
    for name in outputs:
        request.outputs.add(name=name)
    for name, value in parameters.items():
        request.parameters[name].string_param = value
    return request


def add_input(request: Any, name: str, datatype: str, shape: Sequence[int], data: bytes) -> None:
    request.inputs.add(name=name, datatype=datatype, shape=shape)
    request.raw_input_contents.append(data)


def read_chunk(response: Any) -> Chunk:
    data = outputs_of(response, OUTPUTS)
    return Chunk(
        read_texts(data["text_output"]),
        read_texts(data["finish_reason"]),
        sum(unpack("UINT32", data["num_input_tokens"])),
        unpack("UINT32", data["num_output_tokens"]),
        read_texts(data.get("logprobs", b"")),
        "".join(read_texts(data.get("prompt_logprobs", b""))),
        sum(unpack("UINT32", data["num_cached_tokens"])) if "num_cached_tokens" in data else None,
        "".join(read_texts(data.get("chat_format", b""))),
    )


def outputs_of(response: Any, needed: Iterable[str]) -> dict[str, bytes]:
    """Raises ApiError, 500, where one is missing."""
    names = [output.name for output in response.outputs]
    data = dict(zip(names, response.raw_output_contents, strict=True))
    missing = [name for name in needed if name not in data]
    if missing:
        raise ApiError(500, f"the model's answer lacks {', '.join(missing)}")
    return data


def pack_texts(texts: Iterable[str | bytes]) -> bytes:
    encoded = (text.encode() if isinstance(text, str) else text for text in texts)
    return b"".join(piece for text in encoded for piece in (struct.pack("<I", len(text)), text))


def pack(datatype: str, values: Sequence[Any]) -> bytes:
    """Raises struct.error, OverflowError for a number beyond the data type."""
    if datatype == "BYTES":
        return pack_texts(values)
    return struct.pack(f"<{len(values)}{FORMATS[datatype]}", *values)


def unpack(datatype: str, data: bytes) -> list[Any]:
    if datatype == "BYTES":
        return read_texts(data)
    return [value for (value,) in struct.iter_unpack("<" + FORMATS[datatype], data)]


def pack_value(value: TensorValue) -> tuple[str, bytes]:
    values = value if isinstance(value, list | tuple) else [value]
    datatype = _DATATYPES[type(values[0])]
    return datatype, pack(datatype, values)


def read_texts(data: bytes) -> list[str]:
    texts, at = [], 0
    while at < len(data):
        (length,) = struct.unpack_from("<I", data, at)
        texts.append(data[at + 4 : at + 4 + length].decode("utf-8"))
        at += 4 + length
    return texts


@dataclass(frozen=True)
class ServedModel:
    name: str
    triton_name: str  # the model of Triton's that holds the engine
    task: str
    streams: bool  # it is decoupled, and is asked by a gRPC stream
    max_batch_size: int
    adapters: tuple[str, ...] = ()  # that its requests may name
    adapter: str | None = None  # the one that they do, of a name such as model:adapter
    served_names: tuple[str, ...] = ()  # other names of it
    alias_of: str | None = None  # its own name under one of those
    is_ours: bool = True  # whether it runs our library
    takes_adapters: bool = False  # they may be others than when the model was loaded

    @property
    def entry(self) -> str:
        return self.alias_of or self.name.partition(":")[0]

    @property
    def is_batched(self) -> bool:
        return self.max_batch_size > 0


def served_model(config: Any) -> ServedModel | None:
    """The engine stands for its front; None for a model that is none of models.yaml's."""
    parameters = model_config.parameters(config)
    role = parameters.get(ROLE_PARAMETER)
    task = parameters.get(TASK_PARAMETER)
    if task is None or role not in ("engine", "whole", "ensemble"):
        return None
    streams = role == "engine"
    name = config.name.removesuffix(ENGINE_SUFFIX) if streams else config.name
    adapters, served_names = (
        tuple(filter(None, parameters.get(parameter, "").split(",")))
        for parameter in (ADAPTERS_PARAMETER, SERVED_NAMES_PARAMETER)
    )
    return ServedModel(
        *(name, config.name, task, streams, config.max_batch_size, adapters),
        served_names=served_names,
        takes_adapters=ADAPTERS_PARAMETER in parameters,
    )


def under_all_names(model: ServedModel) -> Iterator[ServedModel]:
    """The model, its aliases and its adapters, as ``model:adapter``."""
    yield model
    for alias in model.served_names:
        yield replace(model, name=alias, alias_of=model.name)
    for adapter in model.adapters:
        yield replace(model, name=f"{model.name}:{adapter}", adapters=(), adapter=adapter)
