"""``/v1/embeddings``: texts in, vectors out."""

from __future__ import annotations

import base64
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from generator.openai_api.described import answers as described
from generator.openai_api.described.operation import Operation
from generator.openai_api.routes.encoders.endpoint import (
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
from generator.openai_api.schema import json_body
from generator.openai_api.schema.body import Body
from generator.openai_api.schema.errors import bad_field
from generator.openai_api.schema.json_body import schema_of, takes
from generator.openai_api.schema.request import TensorValue
from generator.openai_api.triton.catalog import EMBEDDING_TASKS, ServedModel

VECTORS = "embedding"
# Passed on to the model; the second is its own name for what OpenAI does not have.
_OPTIONS = {"dimensions": json_body.count, "prompt_name": json_body.text}


@takes(**schema_of(texts))
def _no_token_ids(name: str, value: Any) -> list[str]:
    """As ``texts``, with advice for clients that send another model's token ids."""
    if isinstance(value, list) and value and type(value[0]) in (int, list):
        fix = f"{TEXTS} (langchain-openai sends texts with check_embedding_ctx_length=False)"
        raise bad_field(name, "token ids", fix)
    return texts(name, value)


BODY = Body(
    {
        **FIELDS,
        "input": _no_token_ids,
        "encoding_format": json_body.one_of("float", "base64"),
        **_OPTIONS,
    },
    ("model", "input"),
)


@dataclass(frozen=True)
class EmbeddingsRequest:
    """``is_base64`` says how vectors are sent."""

    common: Common
    texts: list[str]
    is_base64: bool

    def batch(self, model: ServedModel) -> Batch:  # noqa: ARG002, as others
        """All texts."""
        return embed(self.texts, self.common.options, ("input",))

    def write(self, answers: Answers, answer_id: str) -> dict[str, Any]:  # noqa: ARG002
        """OpenAI's object."""
        encode = base64_of if self.is_base64 else array.tolist
        return {
            "object": "list",
            "data": [
                {"object": "embedding", "index": index, "embedding": encode(row)}
                for index, row in enumerate(answers.rows[VECTORS])
            ],
            "model": self.common.model,
            "usage": answers.usage,
        }


def embed(
    texts: list[str], options: Mapping[str, TensorValue], names: tuple[str, ...], **more: Any
) -> Batch:
    """What an embedding model is asked; ``more`` are fields of the Batch."""
    options = {**options, "return_num_input_tokens": True}
    return Batch(texts, (VECTORS, NUM_TOKENS), names, options=options, **more)


def base64_of(row: array[float]) -> str:
    """The bytes of little-endian float32."""
    return base64.b64encode(row.tobytes()).decode("ascii")


def _read(body: Mapping[str, Any]) -> EmbeddingsRequest:
    common, given = read_common(body, BODY)
    options = {name: given[name] for name in _OPTIONS if name in given}
    return EmbeddingsRequest(
        replace(common, options={**common.options, **options}),
        given["input"],
        given.get("encoding_format") == "base64",
    )


EMBEDDINGS = EncoderEndpoint(
    *(("/v1/embeddings",), EMBEDDING_TASKS, "embd-", _read),
    operation=Operation("Texts to vectors", described.Embeddings, BODY),
)
