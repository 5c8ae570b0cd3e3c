"""``/embed``, ``/similarity``, ``/predict`` and ``/rerank`` as text-embeddings-inference has them:
texts as ``inputs``, and bare lists as answers.

https://github.com/huggingface/text-embeddings-inference/blob/main/docs/openapi.json
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from generator.spec.task_sets import CLASSIFIER_TASKS, EMBEDDING_TASKS
from hf_triton.ports.openai.openapi_schema import answers as described
from hf_triton.ports.openai.openapi_schema.operation import Operation
from hf_triton.ports.openai.routes.encoders.embeddings import OPTIONS, VECTORS, embed, normal
from hf_triton.ports.openai.routes.encoders.endpoint import (
    FIELDS,
    NUM_TOKENS,
    TEXTS,
    Answers,
    Batch,
    Common,
    EncoderEndpoint,
    bounded,
    read_common,
    texts,
)
from hf_triton.ports.openai.routes.encoders.rankings import (
    RERANK,
    RERANK_BODY,
    Pairs,
    RerankRequest,
    read_rerank,
)
from hf_triton.ports.openai.schema import json_body
from hf_triton.ports.openai.schema.body import Body, Either, object_of
from hf_triton.ports.openai.schema.errors import bad_field
from hf_triton.ports.openai.schema.json_body import kind_of, only, takes
from hf_triton.ports.openai.triton.catalog import ServedModel

Json = dict[str, Any]
_SEQUENCES = "a text, a pair of texts, or a list of lists of one or two texts"
_DIRECTION = {"truncation_direction": only("Right", "right")}
_FIELDS = {**FIELDS, **_DIRECTION}


_SEQUENCE = {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 2}


@takes(anyOf=[{"type": "string"}, _SEQUENCE, {"type": "array", "items": _SEQUENCE, "minItems": 1}])
def _sequences(name: str, value: Any) -> list[list[str]]:
    """Texts and pairs, each a list."""
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list):
        raise bad_field(name, kind_of(value), _SEQUENCES)
    found = list(value) if isinstance(bounded(name, value)[0], list) else [value]
    for one in found:
        is_list = isinstance(one, list) and all(isinstance(text, str) for text in one)
        if not is_list or not 1 <= len(one) <= 2:
            got = f"a list of {len(one)}" if is_list else f"a list with {kind_of(one)}"
            raise bad_field(name, got, _SEQUENCES)
    if len({len(one) for one in found}) > 1:
        raise bad_field(name, "texts beside pairs", "one of the two in a request")
    return found


EMBED_BODY = Body(
    {**_FIELDS, **OPTIONS, "inputs": texts, "normalize": json_body.boolean}, ("inputs",)
)
_RAW = {"raw_scores": json_body.boolean}
_OF_HUB = Body({"top_k": json_body.count, "function_to_apply": json_body.text}, ())
PREDICT_BODY = Body(
    {
        **_FIELDS,
        **_RAW,
        "inputs": _sequences,
        "parameters": object_of(_OF_HUB),
    },
    ("inputs",),
)
_OF_SIMILARITY = {"truncate": json_body.boolean, "prompt_name": json_body.text}
_SENTENCES = {"source_sentence": json_body.text, "sentences": texts}
SIMILARITY_BODY = Body(
    {
        **FIELDS,
        "inputs": object_of(Body(_SENTENCES, tuple(_SENTENCES))),
        "parameters": object_of(Body({**_OF_SIMILARITY, **_DIRECTION}, ())),
    },
    ("inputs",),
)
_RERANK = Body(
    {
        **_FIELDS,
        **_RAW,
        "query": json_body.text,
        "texts": texts,
        "return_text": json_body.boolean,
    },
    ("query", "texts"),
)


@dataclass(frozen=True)
class EmbedRequest:
    """``normalizes`` where each vector has the length 1."""

    common: Common
    texts: list[str]
    normalizes: bool

    def batch(self, model: ServedModel) -> Batch:  # noqa: ARG002, as others
        """All texts."""
        return embed(self.texts, self.common.options, ("inputs",))

    def write(self, answers: Answers, answer_id: str) -> list[list[float]]:  # noqa: ARG002
        """The vectors."""
        rows: list[array[float]] = answers.rows[VECTORS]
        return [(normal(row) if self.normalizes else row).tolist() for row in rows]


@dataclass(frozen=True)
class PredictRequest:
    """Texts, or pairs; the answer is ``in_list`` unless it is of one that was sent alone."""

    common: Common
    sequences: list[list[str]]
    in_list: bool

    def batch(self, model: ServedModel) -> Batch:  # noqa: ARG002, as others
        """All of them, with all labels of each unless fewer are asked for."""
        firsts, *seconds = zip(*self.sequences, strict=True)
        pairs = seconds[0] if seconds else ()
        options = {"top_k": -1, **self.common.options}
        return Batch(firsts, ("label", "score", NUM_TOKENS), ("inputs",), pairs, options)

    def write(self, answers: Answers, answer_id: str) -> list[Any]:  # noqa: ARG002
        """The labels, the best first."""
        columns = zip(answers.rows["label"], answers.rows["score"], strict=True)
        found = [
            [{"label": label, "score": score} for label, score in zip(*row, strict=True)]
            for row in columns
        ]
        return found if self.in_list else found[0]


@dataclass(frozen=True)
class RankRequest(Pairs):
    """``returns_texts`` beside their numbers."""

    returns_texts: bool = False

    def write(self, answers: Answers, answer_id: str) -> list[Json]:  # noqa: ARG002
        """The texts, the best first."""
        return [
            {
                "index": n,
                "score": score,
                **({"text": self.seconds[n]} if self.returns_texts else {}),
            }
            for n, score in self.best_first(answers)
        ]


@dataclass(frozen=True)
class SimilarityRequest(Pairs):
    """One sentence beside others."""

    def write(self, answers: Answers, answer_id: str) -> list[float]:  # noqa: ARG002
        """How alike each is to the one."""
        return self.scores(answers)


def _common(body: Mapping[str, Any], known: Body, *options: str) -> tuple[Common, Json]:
    """With further ``options`` of the model. Without a word about it, that server cuts."""
    common, given = read_common(body, known)
    further = {name: given[name] for name in options if name in given}
    return replace(common, options={"truncate": True, **common.options, **further}), given


def _read_embed(body: Mapping[str, Any]) -> EmbedRequest:
    common, given = _common(body, EMBED_BODY, *OPTIONS)
    return EmbedRequest(common, given["inputs"], given.get("normalize", True))


def _read_similarity(body: Mapping[str, Any]) -> SimilarityRequest:
    common, given = _common(body, SIMILARITY_BODY)
    for name in _SENTENCES:
        if name not in given["inputs"]:
            raise bad_field(f"inputs.{name}", "none", TEXTS)
    parameters = given.get("parameters", {})
    further = {name: parameters[name] for name in _OF_SIMILARITY if name in parameters}
    return SimilarityRequest(
        replace(common, options={**common.options, **further}),
        [given["inputs"]["source_sentence"]],
        given["inputs"]["sentences"],
        ("inputs.source_sentence", "inputs.sentences"),
        is_raw=False,
    )


def _read_either(body: Mapping[str, Any]) -> EmbedRequest | SimilarityRequest:
    is_embed = not isinstance(body.get("inputs"), dict)
    return _read_embed(body) if is_embed else _read_similarity(body)


def _read_predict(body: Mapping[str, Any], *, in_list: bool = False) -> PredictRequest:
    common, given = _common(body, PREDICT_BODY)
    raw = {"function_to_apply": "none"} if given.get("raw_scores") else {}
    options = {**common.options, **raw, **given.get("parameters", {})}
    in_list = in_list or (isinstance(body["inputs"], list) and isinstance(body["inputs"][0], list))
    return PredictRequest(replace(common, options=options), given["inputs"], in_list)


def _read_rerank(body: Mapping[str, Any]) -> RankRequest | RerankRequest:
    """As TEI where there are texts, else as Cohere."""
    if "texts" not in body:
        return read_rerank(body)
    common, given = _common(body, _RERANK)
    return RankRequest(
        common,
        [given["query"]],
        given["texts"],
        ("query", "texts"),
        given.get("raw_scores", False),
        given.get("return_text", False),
    )


EMBED = EncoderEndpoint(
    *(("/embed",), EMBEDDING_TASKS, "embd-", _read_embed),
    Operation("Texts to vectors, as TEI", described.Vectors, EMBED_BODY, error=described.HubError),
    by_model=True,
)
EMBED_OF_HUB = replace(EMBED, read=_read_either)
SIMILARITY = EncoderEndpoint(
    *(("/similarity",), EMBEDDING_TASKS, "embd-", _read_similarity),
    Operation(
        *("How alike sentences are, as TEI", described.Similarities, SIMILARITY_BODY),
        error=described.HubError,
    ),
    by_model=True,
)
PREDICT = EncoderEndpoint(
    *(("/predict",), CLASSIFIER_TASKS, "classify-", _read_predict),
    Operation(
        "Texts to labels, as TEI", described.Predicted, PREDICT_BODY, error=described.HubError
    ),
    by_model=True,
)
# The Hub's answer is a list of lists, whatever was sent.
PREDICT_OF_HUB = replace(PREDICT, read=partial(_read_predict, in_list=True))
EITHER_RERANK = replace(
    RERANK,
    paths=("/rerank",),
    read=_read_rerank,
    operation=Operation(
        *("The same, or as TEI", described.EitherRanking, Either((RERANK_BODY, _RERANK))),
    ),
    by_model=True,
)
