"""``/v1/embeddings``: texts in, vectors out.

A model without batches takes a list of texts in one request (``input_text``), one with batches
takes rows, at most ``max_batch_size`` of them.
"""

from __future__ import annotations

import base64
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from generator.openai_api.described import answers
from generator.openai_api.described.operation import Operation
from generator.openai_api.schema import json_body
from generator.openai_api.schema.body import Body
from generator.openai_api.schema.errors import ApiError, bad_field
from generator.openai_api.schema.json_body import kind_of
from generator.openai_api.schema.request import field, parameters_of
from generator.openai_api.triton.catalog import ServedModel
from generator.openai_api.triton.tensors import (
    counts,
    new_request,
    outputs_of,
    pack_texts,
    pack_value,
)
from generator.spec.runtime_rules import CACHE_SALT

PATH = "/v1/embeddings"
MAX_INPUTS = 2048  # OpenAI's
OUTPUTS = ("embedding", "num_input_tokens")
_INPUT = "a text or a list of texts (token ids are not: a string is needed)"
_FORMATS = ("float", "base64")
# Passed on to the model; the last two are its own names for what OpenAI does not have.
_OPTIONS = {
    "dimensions": json_body.integer,
    "truncate": json_body.boolean,
    "prompt_name": json_body.text,
}
BODY = Body(
    {
        "model": json_body.text,
        "input": json_body.texts,
        "encoding_format": json_body.one_of("float", "base64"),
        "user": json_body.anything,
        CACHE_SALT: json_body.text,
        **_OPTIONS,
    },
    ("model", "input"),
)
OPERATION = Operation("Texts to vectors", answers.Embeddings, BODY)


@dataclass(frozen=True)
class EmbeddingsRequest:
    """``options`` are the model's inputs beside the texts; ``is_base64`` how vectors are sent;
    ``parameters`` are those of Triton's requests, which change no answer.
    """

    model: str
    texts: tuple[str, ...]
    options: Mapping[str, Any]
    is_base64: bool
    parameters: Mapping[str, str]


@dataclass(frozen=True)
class Vectors:
    """``rows`` are little-endian float32, one for each text."""

    rows: list[bytes]
    num_tokens: int


def read(body: Mapping[str, Any]) -> EmbeddingsRequest:
    """What the request asks for. Raises ApiError, 400."""
    BODY.check(body)
    options = {name: field(body, name, check) for name, check in _OPTIONS.items()}
    return EmbeddingsRequest(
        model=json_body.text("model", body.get("model")),
        texts=tuple(_texts(body.get("input"))),
        options={name: value for name, value in options.items() if value is not None},
        is_base64=body.get("encoding_format") == "base64",
        parameters=parameters_of(body),
    )


def requests(
    model: ServedModel, asked: EmbeddingsRequest, request_id: str, caller: Mapping[str, str]
) -> Iterator[Any]:
    """The ModelInferRequests that together have every text, in order; ``caller`` are parameters of
    theirs too.
    """
    size = model.max_batch_size or len(asked.texts)
    for first in range(0, len(asked.texts), size):
        texts = asked.texts[first : first + size]
        request = _request(model, request_id, texts, asked.options)
        for name, value in {**asked.parameters, **caller}.items():
            request.parameters[name].string_param = value
        yield request


def read_vectors(response: Any) -> Vectors:
    """The outputs of a ModelInferResponse. Raises ValueError where they are not as they must be."""
    data = outputs_of(response, OUTPUTS)
    shapes = {output.name: list(output.shape) for output in response.outputs}
    size = 4 * shapes["embedding"][-1]
    flat = data["embedding"]
    rows = [flat[at : at + size] for at in range(0, len(flat), size)] if size else []
    return Vectors(rows, sum(counts(data["num_input_tokens"])))


def write(asked: EmbeddingsRequest, answers: Sequence[Vectors]) -> dict[str, Any]:
    """OpenAI's object. Raises ApiError where a text has no vector."""
    rows = [row for answer in answers for row in answer.rows]
    if len(rows) != len(asked.texts):
        raise ApiError(500, f"the model answered {len(rows)} of {len(asked.texts)} texts")
    encode = _base64 if asked.is_base64 else _floats
    num_tokens = sum(answer.num_tokens for answer in answers)
    return {
        "object": "list",
        "data": [
            {"object": "embedding", "index": index, "embedding": encode(row)}
            for index, row in enumerate(rows)
        ],
        "model": asked.model,
        "usage": {"prompt_tokens": num_tokens, "total_tokens": num_tokens},
    }


def with_openai_names(error: ApiError) -> ApiError:
    """The model's tensors are this API's ``input``."""
    if error.param not in ("prompt", "text_input", "input_text"):
        return error
    message = f"input{error.message.removeprefix(error.param)}"
    return replace(error, message=message, param="input")


def _request(
    model: ServedModel, request_id: str, texts: Sequence[str], options: Mapping[str, Any]
) -> Any:
    request = new_request(model.triton_name, request_id, OUTPUTS)
    num_texts = len(texts)
    batched = bool(model.max_batch_size)
    name, shape = ("text_input", [num_texts, 1]) if batched else ("input_text", [num_texts])
    request.inputs.add(name=name, datatype="BYTES", shape=shape)
    request.raw_input_contents.append(pack_texts(texts))
    for option, value in {**options, "return_num_input_tokens": True}.items():
        datatype, data = pack_value(value)
        rows = num_texts if batched else 1
        request.inputs.add(name=option, datatype=datatype, shape=[rows, 1] if batched else [1])
        request.raw_input_contents.append(data * rows)
    return request


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list):
        raise bad_field("input", "none" if value is None else kind_of(value), _INPUT)
    if not 1 <= len(value) <= MAX_INPUTS:
        raise bad_field("input", f"a list of {len(value)}", f"1 to {MAX_INPUTS} texts")
    for text in value:
        if not isinstance(text, str):
            raise bad_field("input", f"a list with {kind_of(text)}", _INPUT)
        if not text:
            raise bad_field("input", "an empty text", "a text")
    return value


def _floats(row: bytes) -> list[float]:
    return array("f", row).tolist()


def _base64(row: bytes) -> str:
    return base64.b64encode(row).decode("ascii")
