"""``/v1/embeddings``: texts in, vectors out."""

from __future__ import annotations

import base64
import math
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from generator.spec.task_sets import EMBEDDING_TASKS
from hf_triton.ports.openai.openapi_schema import answers as described
from hf_triton.ports.openai.openapi_schema.operation import Operation
from hf_triton.ports.openai.routes.encoders.endpoint import (
    FIELDS,
    NUM_TOKENS,
    TEXTS,
    Answers,
    Batch,
    Common,
    EncoderEndpoint,
    read_common,
    texts,
)
from hf_triton.ports.openai.schema import json_body
from hf_triton.ports.openai.schema.body import Body
from hf_triton.ports.openai.schema.errors import bad_field
from hf_triton.ports.openai.schema.json_body import kind_of, only, schema_of, takes
from hf_triton.ports.openai.schema.request import TensorValue
from hf_triton.ports.openai.triton.catalog import ServedModel

VECTORS = "embedding"
# Passed on to the model; the second is its own name for what OpenAI does not have.
OPTIONS = {"dimensions": json_body.count, "prompt_name": json_body.text}


@takes(**schema_of(texts))
def _no_token_ids(name: str, value: Any) -> list[str]:
    """As ``texts``, with advice for clients that send another model's token ids."""
    if isinstance(value, list) and value and type(value[0]) in (int, list):
        fix = f"{TEXTS} (langchain-openai sends texts with check_embedding_ctx_length=False)"
        raise bad_field(name, "token ids", fix)
    return texts(name, value)


# What NIM's and Voyage's clients call a text's use, and Jina's.
_INPUT_TYPES = {
    "query": "search_query",
    **dict.fromkeys(("passage", "document"), "search_document"),
}
_TASKS = {
    "retrieval.query": "search_query",
    "retrieval.passage": "search_document",
    "classification": "classification",
    "separation": "clustering",
    "text-matching": "",
}
_TRUNCATE = {"NONE": False, "END": True}  # NIM's


@takes(anyOf=[{"type": "boolean"}, {"enum": [*_TRUNCATE]}])
def truncate(name: str, value: Any) -> bool:
    """True or false, or as NIM's clients say it."""
    if isinstance(value, bool):
        return value
    if not isinstance(value, str) or value not in _TRUNCATE:
        got = "another text" if isinstance(value, str) else kind_of(value)
        raise bad_field(name, got, 'true, false, "END" or "NONE"')
    return _TRUNCATE[value]


_FORMAT = json_body.one_of("float", "base64")
BODY = Body(
    {
        **FIELDS,
        "input": _no_token_ids,
        "truncate": truncate,
        **dict.fromkeys(("encoding_format", "embedding_type"), _FORMAT),
        "input_type": json_body.one_of(*_INPUT_TYPES),
        "task": json_body.one_of(*_TASKS),
        "normalized": json_body.boolean,
        "late_chunking": only(False),
        **OPTIONS,
    },
    ("model", "input"),
)


@dataclass(frozen=True)
class EmbeddingsRequest:
    """``is_base64`` says how vectors are sent, ``normalizes`` whether each has the length 1."""

    common: Common
    texts: list[str]
    is_base64: bool
    normalizes: bool = False

    def batch(self, model: ServedModel) -> Batch:  # noqa: ARG002, as others
        """All texts."""
        return embed(self.texts, self.common.options, ("input",))

    def write(self, answers: Answers, answer_id: str) -> dict[str, Any]:  # noqa: ARG002
        """OpenAI's object."""
        encode = _base64_of if self.is_base64 else array.tolist
        rows = answers.rows[VECTORS]
        return {
            "object": "list",
            "data": [
                {"object": "embedding", "index": index, "embedding": encode(row)}
                for index, row in enumerate(map(normal, rows) if self.normalizes else rows)
            ],
            "model": self.common.model,
            "usage": answers.usage,
        }


def embed(
    texts: list[str],
    options: Mapping[str, TensorValue],
    names: tuple[str, ...],
    outputs: tuple[str, ...] = (),
    **more: Any,
) -> Batch:
    """What an embedding model is asked, ``outputs`` besides; ``more`` are fields of the Batch."""
    options = {**options, "return_num_input_tokens": True}
    return Batch(texts, (VECTORS, NUM_TOKENS, *outputs), names, options=options, **more)


def normal(row: array[float]) -> array[float]:
    """The vector at the length 1."""
    length = math.hypot(*row)
    return array("f", (number / length for number in row)) if length else row


def _base64_of(row: array[float]) -> str:
    """The bytes of little-endian float32."""
    return base64.b64encode(row.tobytes()).decode("ascii")


def _read(body: Mapping[str, Any]) -> EmbeddingsRequest:
    common, given = read_common(body, BODY)
    options = {name: given[name] for name in OPTIONS if name in given}
    use = _INPUT_TYPES.get(given.get("input_type", "")) or _TASKS.get(given.get("task", ""))
    uses = {"input_type": use} if use else {}
    return EmbeddingsRequest(
        replace(
            common,
            options={**common.options, **options},
            parameters={**common.parameters, **uses},
        ),
        given["input"],
        "base64" in (given.get("encoding_format"), given.get("embedding_type")),
        given.get("normalized", False),
    )


EMBEDDINGS = EncoderEndpoint(
    *(("/v1/embeddings",), EMBEDDING_TASKS, "embd-", _read),
    operation=Operation("Texts to vectors", described.Embeddings, BODY),
    by_model=True,
)
