"""Triton's gRPC messages: inputs to bytes, outputs from bytes.

Made by hand rather than with tritonclient's classes, which need numpy. BYTES elements have their
length before them, 4 bytes little-endian.
https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_binary_data.md
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tritonclient.grpc import service_pb2

from generator.spec.runtime_rules import CACHE_SALT, CALLER, TOKENIZER_QUESTION
from hf_triton.ports.openai.schema.request import USER, TensorValue

_PARAMETERS = (USER, CACHE_SALT, CALLER, TOKENIZER_QUESTION)
OUTPUTS = ("text_output", "finish_reason", "num_input_tokens", "num_output_tokens")


@dataclass(frozen=True)
class Chunk:
    """One response: an element per choice in each list; what was not asked for is empty.
    ``prompt_logprobs`` and ``prompt_token_ids`` are of the prompt and come with the first response.

    ``finish_reasons`` are "" while a choice goes on; ``num_output_tokens`` count since the last
    chunk.
    """

    texts: list[str]
    finish_reasons: list[str]
    num_input_tokens: int
    num_output_tokens: list[int]
    logprobs: list[str]
    prompt_logprobs: str = ""
    prompt_token_ids: str = ""
    token_ids: Sequence[str] = ()
    num_cached_tokens: int | None = None
    chat_format: str = ""

    @property
    def num_bytes(self) -> int:
        """The size of its JSON, roughly."""
        of_choices = (*self.logprobs, *self.token_ids)
        return len(self.prompt_logprobs) + len(self.prompt_token_ids) + sum(map(len, of_choices))


def infer_request(
    model: str,
    request_id: str,
    inputs: Mapping[str, TensorValue],
    *,
    batched: bool,
    outputs: Iterable[str],
) -> Any:
    """A ModelInferRequest: one row, each input of one element, or of each of a list; those of
    ``_PARAMETERS`` are parameters.
    """
    request = new_request(model, request_id, outputs)
    for name, value in inputs.items():
        if name in _PARAMETERS:
            request.parameters[name].string_param = str(value)
            continue
        datatype, data = pack_value(value)
        size = len(value) if isinstance(value, list | tuple) else 1
        shape = [1, size] if batched else [size]
        request.inputs.add(name=name, datatype=datatype, shape=shape)
        request.raw_input_contents.append(data)
    return request


def new_request(model: str, request_id: str, outputs: Iterable[str]) -> Any:
    """A ModelInferRequest without inputs."""
    request = service_pb2.ModelInferRequest(model_name=model, id=request_id)
    for name in outputs:
        request.outputs.add(name=name)
    return request


def read_chunk(response: Any) -> Chunk:
    """The outputs of a ModelInferResponse. Raises ValueError where they are not as they must be."""
    data = outputs_of(response, OUTPUTS)
    return Chunk(
        read_texts(data["text_output"]),
        read_texts(data["finish_reason"]),
        sum(counts(data["num_input_tokens"])),
        counts(data["num_output_tokens"]),
        read_texts(data.get("logprobs", b"")),
        "".join(read_texts(data.get("prompt_logprobs", b""))),
        "".join(read_texts(data.get("prompt_token_ids", b""))),
        read_texts(data.get("token_ids", b"")),
        sum(counts(data["num_cached_tokens"])) if "num_cached_tokens" in data else None,
        "".join(read_texts(data.get("chat_format", b""))),
    )


def outputs_of(response: Any, needed: Iterable[str]) -> dict[str, bytes]:
    """A ModelInferResponse's outputs by name. Raises ValueError where one that is needed lacks."""
    names = [output.name for output in response.outputs]
    data = dict(zip(names, response.raw_output_contents, strict=True))
    missing = [name for name in needed if name not in data]
    if missing:
        raise ValueError(f"the model's answer lacks {', '.join(missing)}")
    return data


def pack_texts(texts: Iterable[str | bytes]) -> bytes:
    """The elements of a BYTES tensor."""
    encoded = (text.encode() if isinstance(text, str) else text for text in texts)
    return b"".join(piece for text in encoded for piece in (struct.pack("<I", len(text)), text))


def pack_value(value: TensorValue) -> tuple[str, bytes]:
    """A tensor's datatype, and the bytes of its elements."""
    if isinstance(value, bool):
        return "BOOL", struct.pack("<?", value)
    if isinstance(value, int):
        return "INT32", struct.pack("<i", value)
    if isinstance(value, float):
        return "FP32", struct.pack("<f", value)
    if isinstance(value, tuple):
        return "INT32", struct.pack(f"<{len(value)}i", *value)
    return "BYTES", pack_texts(value if isinstance(value, list) else [value])


def read_texts(data: bytes) -> list[str]:
    """The elements of a BYTES tensor, as texts."""
    texts, at = [], 0
    while at < len(data):
        (length,) = struct.unpack_from("<I", data, at)
        texts.append(data[at + 4 : at + 4 + length].decode("utf-8"))
        at += 4 + length
    return texts


def counts(data: bytes) -> list[int]:
    """The elements of a UINT32 tensor."""
    return [count for (count,) in struct.iter_unpack("<I", data)]
