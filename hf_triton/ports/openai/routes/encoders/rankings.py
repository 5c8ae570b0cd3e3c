"""How well texts fit together. ``/rerank`` sorts documents by it, in Cohere's, Jina's and vLLM's
shape, ``/v1/ranking`` in that of NVIDIA's rerankers; ``/score`` says it of pairs, in vLLM's.

A cross-encoder reads both texts of a pair at once and answers its own score; of an embedding model
the score is the similarity of the two embeddings, by the function that its files name.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import mul
from typing import Any

from generator.spec.task_sets import CLASSIFIER_TASKS, EMBEDDING_TASKS
from hf_triton.ports.openai.openapi_schema import answers as described
from hf_triton.ports.openai.openapi_schema.operation import Operation
from hf_triton.ports.openai.routes.encoders.embeddings import VECTORS, embed, truncate
from hf_triton.ports.openai.routes.encoders.endpoint import (
    FIELDS,
    MAX_INPUTS,
    NUM_TOKENS,
    Answers,
    Batch,
    Common,
    EncoderEndpoint,
    bounded,
    read_common,
    texts,
)
from hf_triton.ports.openai.schema import json_body
from hf_triton.ports.openai.schema.body import Body
from hf_triton.ports.openai.schema.errors import ApiError, bad_field
from hf_triton.ports.openai.schema.json_body import kind_of, takes
from hf_triton.ports.openai.schema.names import top
from hf_triton.ports.openai.schema.request import TensorValue
from hf_triton.ports.openai.triton.catalog import SIMILARITY, ServedModel


@dataclass(frozen=True)
class Pairs:
    """``firsts`` are as many as ``seconds``, or one for all; ``names`` are their fields.
    ``is_raw`` asks a cross-encoder for its scores without the activation.
    """

    common: Common
    firsts: list[str]
    seconds: list[str]
    names: tuple[str, str]
    is_raw: bool

    def batch(self, model: ServedModel) -> Batch:
        """All pairs; for an embedding model the texts of both sides, the second first."""
        if model.task in EMBEDDING_TASKS:
            texts, names = [*self.seconds, *self.firsts], self.names[::-1]
            told = tuple({SIMILARITY} & model.outputs)
            return embed(texts, self.common.options, names, told, num_first=len(self.seconds))
        raw: dict[str, TensorValue] = {"function_to_apply": "none"} if self.is_raw else {}
        outputs = ("score", "logits", NUM_TOKENS)
        options = {**self.common.options, **raw}
        return Batch(self._all_firsts, outputs, self.names, self.seconds, options)

    def scores(self, answers: Answers) -> list[float]:
        """That of each pair. Raises ApiError for a classifier of several labels."""
        found: dict[tuple[str, str], float] = {}
        texts = zip(self._all_firsts, self.seconds, strict=True)
        pairs = zip(texts, self._scores(answers), strict=True)
        # Of the same pair the same one, wherever in a batch it was computed.
        return [found.setdefault(pair, score) for pair, score in pairs]

    @property
    def _all_firsts(self) -> list[str]:
        return self.firsts * (len(self.seconds) if len(self.firsts) == 1 else 1)

    def best_first(self, answers: Answers) -> list[tuple[int, float]]:
        """The places of the second texts and their scores; of equal ones the first."""
        return sorted(enumerate(self.scores(answers)), key=lambda one: one[1], reverse=True)

    def _scores(self, answers: Answers) -> list[float]:
        if VECTORS in answers.rows:
            vectors, num_seconds = answers.rows[VECTORS], len(self.seconds)
            firsts = vectors[num_seconds:] * (num_seconds if len(self.firsts) == 1 else 1)
            told = answers.rows.get(SIMILARITY)
            compare = _SIMILARITIES.get(told[0][0] if told else "", _cosine)
            return list(map(compare, firsts, vectors[:num_seconds]))
        num_labels = len(answers.rows["logits"][0])
        if num_labels != 1:
            raise bad_field(
                "model",
                f"a classifier of {num_labels} labels",
                "one of a single label, a reranker, or an embedding model; /classify has labels",
            )
        return [row[0] for row in answers.rows["score"]]


def _cosine(first: array[float], second: array[float]) -> float:
    lengths = math.hypot(*first) * math.hypot(*second)
    return _dot(first, second) / lengths if lengths else 0.0


def _dot(first: array[float], second: array[float]) -> float:
    return float(sum(map(mul, first, second)))


# Sentence-transformers': of distances the nearer is the larger.
_SIMILARITIES: Mapping[str, Callable[[array[float], array[float]], float]] = {
    "dot": _dot,
    "euclidean": lambda first, second: -math.dist(first, second),
    "manhattan": lambda first, second: -sum(abs(a - b) for a, b in zip(first, second, strict=True)),
}


@dataclass(frozen=True)
class ScoreRequest(Pairs):
    """vLLM's."""

    def write(self, answers: Answers, answer_id: str) -> dict[str, Any]:
        """VLLM's object."""
        found = [
            {"index": index, "object": "score", "score": score}
            for index, score in enumerate(self.scores(answers))
        ]
        return answers.listed(answer_id, self.common.model, found)


@dataclass(frozen=True)
class RerankRequest(Pairs):
    """``documents`` are as they came; ``top_n`` of them are answered."""

    documents: list[Any]
    top_n: int
    returns_documents: bool

    def write(self, answers: Answers, answer_id: str) -> dict[str, Any]:
        """The documents, the best first."""
        best = self.best_first(answers)[: self.top_n]
        return {
            "id": answer_id,
            "model": self.common.model,
            "usage": answers.usage,
            "results": [self._result(index, score) for index, score in best],
        }

    def _result(self, index: int, score: float) -> dict[str, Any]:
        found: dict[str, Any] = {"index": index, "relevance_score": score}
        if self.returns_documents:
            document = self.documents[index]
            found["document"] = {"text": document} if isinstance(document, str) else document
        return found


@dataclass(frozen=True)
class PassagesRequest(Pairs):
    """NVIDIA's."""

    def write(self, answers: Answers, answer_id: str) -> dict[str, Any]:  # noqa: ARG002
        """The passages, the best first."""
        best = self.best_first(answers)
        rankings = [{"index": index, "logit": score} for index, score in best]
        return {"rankings": rankings, "usage": answers.usage}


# What a document may hold in other APIs, which would count.
_NOT_READ = ("image", "image_url", "content")


def _document_text(where: str, document: Any) -> str:
    """The text of a document: itself, or its field ``text``. Raises ApiError, 400."""
    text = document.get("text") if isinstance(document, dict) else document
    for name in _NOT_READ:
        if isinstance(document, dict) and document.get(name) is not None:
            raise ApiError(400, f"{where}.{name}: models here read texts alone", top(where))
    if not isinstance(text, str):
        has_none = isinstance(document, dict) and text is None
        got = "an object without text" if has_none else kind_of(text)
        allowed = 'a text or {"text": ...}'
        raise bad_field(where, got, allowed, top(where))
    return text


@takes(
    type="array",
    items={"anyOf": [{"type": "string"}, {"type": "object", "required": ["text"]}]},
    minItems=1,
    maxItems=MAX_INPUTS,
)
def _documents(name: str, value: Any) -> list[str]:
    """Their texts."""
    if not isinstance(value, list):
        raise bad_field(name, kind_of(value), "a list of texts")
    return [_document_text(f"{name}[{n}]", one) for n, one in enumerate(bounded(name, value))]


@takes(type="object", properties={"text": {"type": "string"}}, required=["text"])
def _query(name: str, value: Any) -> str:
    """Its text."""
    return _document_text(name, json_body.json_object(name, value))


@takes(type="integer", minimum=0)
def _top_n(name: str, value: Any) -> int:
    number = json_body.integer(name, value)
    if number < 0:
        raise bad_field(name, str(number), "1 and more, 0 for all")
    return number


_ACTIVATION = dict.fromkeys(("use_activation", "activation"), json_body.boolean)  # new, old name
RERANK_BODY = Body(
    {
        **FIELDS,
        **_ACTIVATION,
        "query": json_body.text,
        "documents": _documents,
        "top_n": _top_n,
        "return_documents": json_body.boolean,
    },
    ("model", "query", "documents"),
)
_SCORE = Body(
    {**FIELDS, **_ACTIVATION, "text_1": texts, "text_2": texts}, ("model", "text_1", "text_2")
)


_RANKING = Body(
    {**FIELDS, "truncate": truncate, "query": _query, "passages": _documents},
    ("model", "query", "passages"),
)


def _read_score(body: Mapping[str, Any]) -> ScoreRequest:
    common, given = read_common(body, _SCORE)
    names = ("text_1", "text_2")
    firsts, seconds = (given[name] for name in names)
    if len(firsts) not in (1, len(seconds)):
        got = f"{len(firsts)} texts for {len(seconds)}"
        raise bad_field("text_1", got, "one for all of text_2, or one for each")
    return ScoreRequest(common, firsts, seconds, names, _is_raw(body))


def read_rerank(body: Mapping[str, Any]) -> RerankRequest:
    """What a request in Cohere's form asks for. Raises ApiError, 400."""
    common, given = read_common(body, RERANK_BODY)
    documents = body["documents"]
    return RerankRequest(
        common,
        [given["query"]],
        given["documents"],
        ("query", "documents"),
        _is_raw(body),
        documents,
        given.get("top_n") or len(documents),  # vLLM's 0 is all
        body.get("return_documents") is not False,
    )


def _read_passages(body: Mapping[str, Any]) -> PassagesRequest:
    common, given = read_common(body, _RANKING)
    texts = [given["query"]], given["passages"]
    return PassagesRequest(common, *texts, ("query", "passages"), is_raw=True)


def _is_raw(body: Mapping[str, Any]) -> bool:
    return any(body.get(name) is False for name in _ACTIVATION)


_TASKS = (*CLASSIFIER_TASKS, *EMBEDDING_TASKS)
RERANK = EncoderEndpoint(
    *(("/v1/rerank", "/v2/rerank"), _TASKS, "rerank-", read_rerank),
    operation=Operation("Documents, the best for a query first", described.Ranking, RERANK_BODY),
)
SCORE = EncoderEndpoint(
    *(("/score", "/v1/score"), _TASKS, "score-", _read_score),
    operation=Operation("How well pairs of texts fit", described.Scores, _SCORE),
)
RANKING = EncoderEndpoint(
    *(("/v1/ranking",), _TASKS, "rank-", _read_passages),
    operation=Operation("Passages, the best for a query first", described.Rankings, _RANKING),
)
