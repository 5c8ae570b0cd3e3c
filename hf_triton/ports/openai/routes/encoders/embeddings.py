"""Texts in, vectors out: ``/v1/embeddings``, and ``/embed`` of text-embeddings-inference (TEI),
whose answers are bare lists.

https://github.com/huggingface/text-embeddings-inference/blob/main/docs/openapi.json
"""

from __future__ import annotations

import base64
import math
from array import array
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Struct

from generator.spec.task_sets import EMBEDDING_TASKS
from hf_triton.ports.openai.openapi_schema.document import Operation
from hf_triton.ports.openai.routes.encoders.endpoint import (
    NUM_TOKENS,
    Answers,
    Batch,
    EncoderEndpoint,
    EncoderRequest,
    Texts,
    listed,
)
from hf_triton.ports.openai.schema.answers import Usage
from hf_triton.ports.openai.schema.body import Count, only, present
from hf_triton.ports.openai.schema.errors import HubError, bad_field
from hf_triton.ports.openai.schema.request import TensorValue
from hf_triton.ports.openai.triton.catalog import ServedModel

VECTORS = "embedding"
# The model's words for what NIM's and Voyage's clients call a text's use, and Jina's.
_QUERY, _DOCUMENT = "search_query", "search_document"
_USES = {
    "query": _QUERY,
    "passage": _DOCUMENT,
    "document": _DOCUMENT,
    "retrieval.query": _QUERY,
    "retrieval.passage": _DOCUMENT,
    "classification": "classification",
    "separation": "clustering",
    "text-matching": "",
}


JinasTask = Literal[
    "retrieval.query", "retrieval.passage", "classification", "separation", "text-matching"
]


class EmbeddingRequest(EncoderRequest, kw_only=True):
    """What an embedding model takes beside texts; ``prompt_name`` is its own word."""

    dimensions: Count | None = None
    prompt_name: str | None = None

    @property
    def options(self) -> dict[str, TensorValue]:
        """Further options of the model."""
        return {**super().options, **present(self, "dimensions", "prompt_name")}


class Embedding(Struct):
    """One text's vector: numbers, or their float32 in base64."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class Embeddings(Struct):
    """Of all texts."""

    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: Usage


class EmbeddingsRequest(EmbeddingRequest, kw_only=True):
    """OpenAI's."""

    input: Texts
    encoding_format: Literal["float", "base64"] | None = None
    embedding_type: Literal["float", "base64"] | None = None
    input_type: Literal["query", "passage", "document"] | None = None
    task: JinasTask | None = None
    normalized: bool | None = None
    late_chunking: Annotated[Any, only(False)] = None

    def of_caller(self) -> Mapping[str, str]:
        """With a text's use."""
        use = _USES.get(self.input_type or "") or _USES.get(self.task or "")
        return {**super().of_caller(), **({"input_type": use} if use else {})}

    def batch(self, model: ServedModel) -> Batch:  # noqa: ARG002, as others
        """All texts."""
        return embed(listed(self.input), self.options, ("input",))

    def write(self, answers: Answers, answer_id: str) -> Embeddings:  # noqa: ARG002
        """The vectors."""
        is_base64 = "base64" in (self.encoding_format, self.embedding_type)
        rows = answers.rows[VECTORS]
        found = [
            Embedding("embedding", index, _base64_of(row) if is_base64 else row.tolist())
            for index, row in enumerate(map(_normal, rows) if self.normalized else rows)
        ]
        return Embeddings("list", found, self.model, answers.usage)


class EmbedRequest(EmbeddingRequest, kw_only=True):
    """TEI's."""

    model: str | None = None  # type: ignore[assignment]
    inputs: Texts
    normalize: bool | None = None
    truncation_direction: Annotated[Any, only("Right", "right")] = None

    def batch(self, model: ServedModel) -> Batch:  # noqa: ARG002, as others
        """All texts; without a word about it, that server cuts."""
        return embed(listed(self.inputs), {"truncate": True, **self.options}, ("inputs",))

    def write(self, answers: Answers, answer_id: str) -> list[list[float]]:  # noqa: ARG002
        """The vectors."""
        rows: list[array[float]] = answers.rows[VECTORS]
        return [(row if self.normalize is False else _normal(row)).tolist() for row in rows]


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


def _normal(row: array[float]) -> array[float]:
    """The vector at the length 1."""
    length = math.hypot(*row)
    return array("f", (number / length for number in row)) if length else row


def _base64_of(row: array[float]) -> str:
    """The bytes of little-endian float32."""
    return base64.b64encode(row.tobytes()).decode("ascii")


def _no_token_ids(body: Mapping[str, Any]) -> type[EncoderRequest]:
    """With advice for clients that send another model's token ids."""
    given = body.get("input")
    if isinstance(given, list) and given and type(given[0]) in (int, list):
        how = "langchain-openai sends texts with check_embedding_ctx_length=False"
        raise bad_field("input", "token ids", f"a text or a list of texts ({how})")
    return EmbeddingsRequest


EMBEDDINGS = EncoderEndpoint(
    *(("/v1/embeddings",), EMBEDDING_TASKS, "embd-"),
    Operation("Texts to vectors", Embeddings, EmbeddingsRequest),
    by_model=True,
    fits=_no_token_ids,
)
EMBED = EncoderEndpoint(
    *(("/embed",), EMBEDDING_TASKS, "embd-"),
    Operation("Texts to vectors, as TEI", list[list[float]], EmbedRequest, error=HubError),
    by_model=True,
)
