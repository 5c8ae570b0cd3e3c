"""Texts to vectors: ``/v1/embeddings``, and ``/embed`` of text-embeddings-inference (TEI), whose
answers are bare lists; to the weights of words, ``/embed_sparse``, and a vector for each token,
``/embed_all``. Texts to labels and their probabilities: ``/classify`` in vLLM's shape,
``/predict`` in that of TEI, and the Hub's of one model.

https://github.com/huggingface/text-embeddings-inference/blob/main/docs/openapi.json
"""

from __future__ import annotations

import base64
import math
import time
from array import array
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta, Struct

from generator.spec.task_sets import CLASSIFIER_TASKS, EMBEDDING_TASKS
from hf_triton.ports.openai.routes.answers import Usage
from hf_triton.ports.openai.routes.encoders.endpoint import (
    MAX_INPUTS,
    Answers,
    EncoderRequest,
    Listed,
    TeiRequest,
    Texts,
    encoder,
)
from hf_triton.ports.openai.schema.body import Count, also, only, present, refused
from hf_triton.ports.openai.schema.errors import bad_field
from hf_triton.ports.openai.schema.request import TensorValue

VECTORS = "embedding"
# The model's words for what NIM's and Voyage's clients call a text's use.
_USES = {
    "query": "search_query",
    **dict.fromkeys(("passage", "document"), "search_document"),
}


Use = Literal["query", "passage", "document"]


def _use_of(given: Use | None) -> Mapping[str, str]:
    return {"input_type": _USES[given]} if given else {}


class EmbeddingRequest(EncoderRequest, kw_only=True):
    outputs: ClassVar[tuple[str, ...]] = (VECTORS,)

    dimensions: Count | None = None
    prompt_name: str | None = None

    @property
    def options(self) -> dict[str, TensorValue]:
        given = present(self, "dimensions", "prompt_name")
        return {**super().options, **given, "return_num_input_tokens": True}


class Embedding(Struct):
    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class Embeddings(Struct):
    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: Usage


@also(
    {
        # Jina's.
        "task": refused("send input_type or prompt_name"),
        "embedding_type": refused("send encoding_format", "float"),
        "normalized": refused("serve a model that normalizes, or ask /embed"),
        "late_chunking": refused("send each text by itself", False),
    }
)
class EmbeddingsRequest(EmbeddingRequest, kw_only=True):
    input: Texts
    encoding_format: Literal["float", "base64"] | None = None
    input_type: Use | None = None

    def of_caller(self) -> Mapping[str, str]:
        return {**super().of_caller(), **_use_of(self.input_type)}

    def write(self, answers: Answers) -> Embeddings:
        is_base64 = self.encoding_format == "base64"
        rows = answers.rows[VECTORS]
        found = [
            Embedding(
                *("embedding", index),
                # As little-endian float32.
                base64.b64encode(row.tobytes()).decode("ascii") if is_base64 else row.tolist(),
            )
            for index, row in enumerate(rows)
        ]
        return Embeddings("list", found, self.model, answers.usage)


class TeiTexts(TeiRequest, EmbeddingRequest, kw_only=True):
    fields = ("inputs",)

    inputs: Texts
    truncation_direction: Annotated[Any, only("Right", "right")] = None


class EmbedRequest(TeiTexts, kw_only=True):
    normalize: bool | None = None

    def write(self, answers: Answers) -> list[list[float]]:
        rows: list[array[float]] = answers.rows[VECTORS]
        return [(row if self.normalize is False else _normal(row)).tolist() for row in rows]


class Weight(Struct):
    index: int
    value: float


class SparseRequest(TeiTexts, kw_only=True):
    outputs = ("token_ids", "weights")

    def write(self, answers: Answers) -> list[list[Weight]]:
        """Of texts with fewer words than others zeros come last."""
        columns = zip(answers.rows["token_ids"], answers.rows["weights"], strict=True)
        rows = [zip(ids, weights, strict=True) for ids, weights in columns]
        return [[Weight(*one) for one in row if one[1]] for row in rows]


class TokensRequest(TeiTexts, kw_only=True):
    """``input_type`` is ours: late interaction reads a query in another way than a document."""

    outputs = ("token_embeddings",)

    input_type: Use | None = None

    def of_caller(self) -> Mapping[str, str]:
        return {**super().of_caller(), **_use_of(self.input_type)}

    def write(self, answers: Answers) -> list[list[list[float]]]:
        return [[one.tolist() for one in row] for row in answers.rows["token_embeddings"]]


def _normal(row: array[float]) -> array[float]:
    length = math.hypot(*row)
    return array("f", (number / length for number in row)) if length else row


def _no_token_ids(body: Mapping[str, Any]) -> type[EncoderRequest]:
    """Advises clients that send another model's token ids."""
    given = body.get("input")
    if isinstance(given, list) and given and type(given[0]) in (int, list):
        how = "langchain-openai sends texts with check_embedding_ctx_length=False"
        raise bad_field("input", "token ids", f"a text or a list of texts ({how})")
    return EmbeddingsRequest


class Label(Struct):
    index: int
    label: str
    probs: list[float]
    num_classes: int


class Labels(Listed):
    data: list[Label]


class ClassifyRequest(EncoderRequest, kw_only=True):
    outputs = ("label", "score", "logits")

    input: Texts

    @property
    def options(self) -> dict[str, TensorValue]:
        return {**super().options, "top_k": -1}

    def write(self, answers: Answers) -> Labels:
        rows = answers.rows
        columns = zip(rows["label"], rows["score"], rows["logits"], strict=True)
        found = [
            Label(index, labels[0], _in_order(scores, logits), len(logits))
            for index, (labels, scores, logits) in enumerate(columns)
        ]
        created = int(time.time())
        return Labels(answers.answer_id, "list", created, self.model, found, answers.usage)


def _in_order(scores: array[float], logits: array[float]) -> list[float]:
    """Scores in the order of the labels: those of higher logits are higher."""
    best = sorted(range(len(logits)), key=logits.__getitem__, reverse=True)
    return [score for _, score in sorted(zip(best, scores, strict=True))]


class Prediction(Struct):
    label: str
    score: float


Predicted = list[Prediction | list[Prediction]]


class OfHub(Struct, kw_only=True, forbid_unknown_fields=True):
    top_k: Count | None = None
    function_to_apply: str | None = None


_Pair = Annotated[list[str], Meta(min_length=1, max_length=2)]


class PredictRequest(TeiRequest, kw_only=True):
    """TEI's and the Hub's: a text, a pair of texts, or a list of lists of one or two texts. All
    labels of each are answered, unless fewer are asked for.
    """

    fields = ("inputs",)
    outputs = ("label", "score")
    is_listed: ClassVar[bool] = False  # the answer, whatever was sent

    inputs: str | Annotated[list[str | _Pair], Meta(min_length=1, max_length=MAX_INPUTS)]
    raw_scores: bool | None = None
    truncation_direction: Annotated[Any, only("Right", "right")] = None
    parameters: OfHub | None = None

    @property
    def options(self) -> dict[str, TensorValue]:
        raw = {"function_to_apply": "none"} if self.raw_scores else {}
        own = present(self.parameters, "top_k", "function_to_apply")
        return {**super().options, "top_k": -1, **raw, **own}

    @property
    def sides(self) -> tuple[list[str], list[str]]:
        given: Any = [self.inputs] if isinstance(self.inputs, str) else self.inputs
        found: list[Any] = given if isinstance(given[0], list) else [given]
        first = found[0]
        are_alike = all(isinstance(one, list) and len(one) == len(first) for one in found)
        if not are_alike or len(first) > 2 or not all(isinstance(one, str) for one in first):
            allowed = "a text, a pair of texts, or a list of lists, all of one text or all of two"
            raise bad_field("inputs", f"a list of {len(given)}", allowed)
        firsts, *seconds = map(list, zip(*found, strict=True))
        return firsts, seconds[0] if seconds else []

    def write(self, answers: Answers) -> Predicted:
        """Labels, the best first; a list of them, unless one text or pair was sent alone."""
        columns = zip(answers.rows["label"], answers.rows["score"], strict=True)
        found = [[Prediction(*one) for one in zip(*row, strict=True)] for row in columns]
        is_list = isinstance(self.inputs, list) and isinstance(self.inputs[0], list)
        return [*found] if is_list or self.is_listed else [*found[0]]


class HubPredictRequest(PredictRequest, kw_only=True):
    """The same as the Hub asks it: the answer is a list of lists, whatever was sent."""

    is_listed = True


TEXTS = (
    encoder(
        *(("/v1/embeddings",), EMBEDDING_TASKS, "embd-", EmbeddingsRequest, "Texts to vectors"),
        fits=_no_token_ids,
    ),
    encoder(("/embed",), EMBEDDING_TASKS, "embd-", EmbedRequest, "Texts to vectors, as TEI"),
    encoder(
        *(("/embed_sparse",), EMBEDDING_TASKS, "embd-", SparseRequest, "Texts to weights of words")
    ),
    encoder(("/embed_all",), EMBEDDING_TASKS, "embd-", TokensRequest, "Texts to tokens' vectors"),
    encoder(
        *(("/classify", "/v1/classify"), CLASSIFIER_TASKS, "classify-", ClassifyRequest),
        "Texts to labels, in vLLM's shape",
    ),
    encoder(
        ("/predict",), CLASSIFIER_TASKS, "classify-", PredictRequest, "Texts to labels, as TEI"
    ),
)
