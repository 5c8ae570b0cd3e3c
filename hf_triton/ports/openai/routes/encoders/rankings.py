"""Scores of pairs of texts. ``/rerank`` sorts documents by it, in Cohere's, Jina's and vLLM's
shape or in that of text-embeddings-inference (TEI), ``/v1/ranking`` in that of NVIDIA's rerankers;
``/score`` says it of pairs, in vLLM's, ``/similarity`` in TEI's.

A cross-encoder reads both texts of a pair at once and answers its own score, an embedding model the
similarity of the two embeddings, by the function that its files name.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from operator import attrgetter
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

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
from hf_triton.ports.openai.routes.encoders.texts import TEXTS, EmbedRequest, HubPredictRequest
from hf_triton.ports.openai.schema.body import Json, only, present
from hf_triton.ports.openai.schema.errors import ApiError, bad_field
from hf_triton.ports.openai.schema.request import TensorValue
from hf_triton.ports.openai.triton.tensors import ServedModel


class Pairs(EncoderRequest, kw_only=True, dict=True):
    """Pairs of texts: as many first texts as second ones, or one first text for all."""

    @cached_property
    def sides(self) -> tuple[list[str], list[str]]:
        firsts, seconds = map(_texts_of, self.fields, attrgetter(*self.fields)(self))
        if len(firsts) not in (1, len(seconds)):
            got = f"{len(firsts)} texts for {len(seconds)}"
            allowed = f"one for all of {self.fields[1]}, or one for each"
            raise bad_field(self.fields[0], got, allowed)
        return firsts * (len(seconds) if len(firsts) == 1 else 1), seconds

    @property
    def is_raw(self) -> bool:
        """True if a cross-encoder is asked for its scores without the activation."""
        return False

    def of_model(self, model: ServedModel) -> tuple[Sequence[str], Mapping[str, TensorValue]]:
        if model.task not in CLASSIFIER_TASKS:
            return ("score",), self.options
        raw = {"function_to_apply": "none"} if self.is_raw else {}
        return ("score", "logits"), {**self.options, **raw}

    def scores(self, answers: Answers) -> list[float]:
        """The score of each pair. Raises ApiError for a classifier of several labels."""
        found: dict[tuple[str, str], float] = {}
        pairs = zip(zip(*self.sides, strict=True), _scores(answers), strict=True)
        # Equal pairs get the same score, wherever in a batch each was computed.
        return [found.setdefault(pair, score) for pair, score in pairs]

    def best_first(self, answers: Answers) -> list[tuple[int, float]]:
        """Indices of the second texts, and their scores."""
        return sorted(enumerate(self.scores(answers)), key=lambda one: one[1], reverse=True)


# Fields that other APIs read, so that ignoring them would change a score.
_NOT_READ = ("image", "image_url", "content")


def _texts_of(place: str, given: Any) -> list[str]:
    """The text, or those of a list; of an object its field ``text``. Raises ApiError, 400."""
    if isinstance(given, list):
        return [text for n, one in enumerate(given) for text in _texts_of(f"{place}[{n}]", one)]
    if isinstance(given, str):
        return [given]
    for name in _NOT_READ:
        if given.get(name) is not None:
            raise ApiError(400, f"{place}.{name}: models here read only texts", place)
    if not isinstance(given.get("text"), str):
        raise bad_field(place, "an object without text", 'a text or {"text": ...}')
    return [given["text"]]


def _scores(answers: Answers) -> list[float]:
    num_labels = len(answers.rows["logits"][0]) if "logits" in answers.rows else 1
    if num_labels != 1:
        allowed = "one of a single label, a reranker, or an embedding model; /classify has labels"
        raise bad_field("model", f"a classifier of {num_labels} labels", allowed)
    return [row[0] for row in answers.rows["score"]]


class _Activated(Pairs, kw_only=True):
    use_activation: bool | None = None
    activation: bool | None = None

    @property
    def is_raw(self) -> bool:
        return False in (self.use_activation, self.activation)


class Score(Struct):
    index: int
    object: Literal["score"]
    score: float


class Scores(Listed):
    data: list[Score]


class ScoreRequest(_Activated, kw_only=True):
    fields = ("text_1", "text_2")

    text_1: Texts
    text_2: Texts

    def write(self, answers: Answers) -> Scores:
        found = [Score(n, "score", score) for n, score in enumerate(self.scores(answers))]
        return Scores(answers.answer_id, "list", int(time.time()), self.model, found, answers.usage)


Documents = Annotated[list[str | Json], Meta(min_length=1, max_length=MAX_INPUTS)]


class Ranked(Struct):
    index: int
    relevance_score: float
    document: Json | UnsetType = UNSET


class Ranking(Struct):
    id: str
    model: str
    results: list[Ranked]
    usage: Usage


class RerankRequest(_Activated, kw_only=True):
    """Cohere's; vLLM's ``top_n`` of 0 is all."""

    fields = ("query", "documents")

    query: str
    documents: Documents
    top_n: Annotated[int, Meta(ge=0)] | None = None
    return_documents: bool | None = None

    def write(self, answers: Answers) -> Ranking:
        results = []
        for index, score in self.best_first(answers)[: self.top_n or None]:
            document = self.documents[index]
            whole = {"text": document} if isinstance(document, str) else document
            shown = UNSET if self.return_documents is False else whole
            results.append(Ranked(index, score, shown))
        return Ranking(answers.answer_id, self.model, results, answers.usage)


class RankedPassage(Struct):
    index: int
    logit: float


class Rankings(Struct):
    rankings: list[RankedPassage]
    usage: Usage


class PassagesRequest(Pairs, kw_only=True):
    fields = ("query", "passages")
    is_raw = True

    query: Json
    passages: Documents

    def write(self, answers: Answers) -> Rankings:
        return Rankings([RankedPassage(*one) for one in self.best_first(answers)], answers.usage)


class TeiRanked(Struct):
    index: int
    score: float
    text: str | UnsetType = UNSET


class TeiRerankRequest(TeiRequest, Pairs, kw_only=True):
    fields = ("query", "texts")

    query: str
    texts: Texts
    raw_scores: bool | None = None
    return_text: bool | None = None
    truncation_direction: Annotated[Any, only("Right", "right")] = None

    @property
    def is_raw(self) -> bool:
        return bool(self.raw_scores)

    def write(self, answers: Answers) -> list[TeiRanked]:
        _, texts = self.sides
        return [
            TeiRanked(n, score, texts[n] if self.return_text else UNSET)
            for n, score in self.best_first(answers)
        ]


class Sentences(Struct, forbid_unknown_fields=True):
    source_sentence: str
    sentences: Texts


class SimilarityParameters(Struct, kw_only=True, forbid_unknown_fields=True):
    truncate: bool | None = None
    prompt_name: str | None = None
    truncation_direction: Annotated[Any, only("Right", "right")] = None


class SimilarityRequest(TeiRequest, Pairs, kw_only=True):
    fields = ("inputs.source_sentence", "inputs.sentences")

    inputs: Sentences
    parameters: SimilarityParameters | None = None

    @property
    def options(self) -> dict[str, TensorValue]:
        return {**super().options, **present(self.parameters, "truncate", "prompt_name")}

    def write(self, answers: Answers) -> list[float]:
        return self.scores(answers)


_TASKS = (*CLASSIFIER_TASKS, *EMBEDDING_TASKS)
_BEST_FIRST = "Documents, the best for a query first"
RERANK = encoder(("/v1/rerank", "/v2/rerank"), _TASKS, "rerank-", RerankRequest, _BEST_FIRST)
ENCODING = (
    *TEXTS,
    encoder(
        *(("/similarity",), EMBEDDING_TASKS, "embd-", SimilarityRequest),
        "Similarities of sentences, as TEI",
    ),
    # As TEI where there are texts, else as Cohere.
    encoder(
        *(("/rerank",), _TASKS, "rerank-", (RerankRequest, TeiRerankRequest)),
        "Documents, or TEI texts",
        fits=lambda body: TeiRerankRequest if "texts" in body else RerankRequest,
    ),
    RERANK,
    encoder(("/score", "/v1/score"), _TASKS, "score-", ScoreRequest, "Scores of pairs of texts"),
    encoder(
        *(("/v1/ranking",), _TASKS, "rank-", PassagesRequest),
        "Passages, the best for a query first",
    ),
)
# At POST / of TEI and the Hub, by the task.
OF_ONE = (
    encoder(
        *(("/",), EMBEDDING_TASKS, "embd-", (EmbedRequest, SimilarityRequest)),
        fits=lambda body: (
            SimilarityRequest if isinstance(body.get("inputs"), dict) else EmbedRequest
        ),
    ),
    encoder(("/",), CLASSIFIER_TASKS, "classify-", HubPredictRequest),
)
