"""Texts to labels and their probabilities: ``/classify`` in vLLM's shape, ``/predict`` in that of
text-embeddings-inference (TEI), and the Hub's of one model.
"""

from __future__ import annotations

import time
from array import array
from dataclasses import replace
from typing import Annotated, Any

from msgspec import Meta, Struct

from generator.spec.task_sets import CLASSIFIER_TASKS
from hf_triton.ports.openai.openapi_schema.document import Operation
from hf_triton.ports.openai.routes.encoders.endpoint import (
    MAX_INPUTS,
    NUM_TOKENS,
    Answers,
    Batch,
    EncoderEndpoint,
    EncoderRequest,
    Listed,
    Texts,
    listed,
)
from hf_triton.ports.openai.schema.body import Count, only, present
from hf_triton.ports.openai.schema.errors import HubError, bad_field
from hf_triton.ports.openai.schema.request import TensorValue
from hf_triton.ports.openai.triton.catalog import ServedModel


class Label(Struct):
    """One text's best label, and the probability of each."""

    index: int
    label: str
    probs: list[float]
    num_classes: int


class Labels(Listed):
    """Of all texts."""

    data: list[Label]


class ClassifyRequest(EncoderRequest, kw_only=True):
    """vLLM's."""

    input: Texts

    def batch(self, model: ServedModel) -> Batch:  # noqa: ARG002, as others
        """All texts, with all labels of each."""
        outputs = ("label", "score", "logits", NUM_TOKENS)
        return Batch(listed(self.input), outputs, ("input",), options={**self.options, "top_k": -1})

    def write(self, answers: Answers, answer_id: str) -> Labels:
        """The labels."""
        rows = answers.rows
        columns = zip(rows["label"], rows["score"], rows["logits"], strict=True)
        found = [
            Label(index, labels[0], _in_order(scores, logits), len(logits))
            for index, (labels, scores, logits) in enumerate(columns)
        ]
        created = int(time.time())
        return Labels(answer_id, "list", created, self.model, found, answers.usage)


def _in_order(scores: array[float], logits: array[float]) -> list[float]:
    """``scores``, the best first, in the order of the labels: no function of the model's puts a
    higher logit below a lower one.
    """
    best = sorted(range(len(logits)), key=logits.__getitem__, reverse=True)
    found = [0.0] * len(scores)
    for index, score in zip(best, scores, strict=True):
        found[index] = score
    return found


class Prediction(Struct):
    """A label."""

    label: str
    score: float


Predicted = list[Prediction | list[Prediction]]


class OfHub(Struct, kw_only=True, forbid_unknown_fields=True):
    """The Hub's parameters."""

    top_k: Count | None = None
    function_to_apply: str | None = None


_Pair = Annotated[list[str], Meta(min_length=1, max_length=2)]


class PredictRequest(EncoderRequest, kw_only=True):
    """TEI's and the Hub's: a text, a pair of texts, or a list of lists of one or two texts."""

    model: str | None = None  # type: ignore[assignment]
    inputs: str | Annotated[list[str | _Pair], Meta(min_length=1, max_length=MAX_INPUTS)]
    raw_scores: bool | None = None
    truncation_direction: Annotated[Any, only("Right", "right")] = None
    parameters: OfHub | None = None

    def sequences(self) -> list[list[str]]:
        """Texts and pairs, each a list. Raises ApiError, 400, for some of both."""
        given: Any = [self.inputs] if isinstance(self.inputs, str) else self.inputs
        found: list[Any] = given if isinstance(given[0], list) else [given]
        first = found[0]
        are_alike = all(isinstance(one, list) and len(one) == len(first) for one in found)
        if not are_alike or len(first) > 2 or not all(isinstance(one, str) for one in first):
            allowed = "a text, a pair of texts, or a list of lists, all of one text or all of two"
            raise bad_field("inputs", f"a list of {len(given)}", allowed)
        return found

    def check(self) -> None:
        """Raises ApiError, 400, for texts beside pairs."""
        self.sequences()

    def batch(self, model: ServedModel) -> Batch:  # noqa: ARG002, as others
        """All of them, with all labels of each unless fewer are asked for; that server cuts."""
        firsts, *seconds = zip(*self.sequences(), strict=True)
        raw = {"function_to_apply": "none"} if self.raw_scores else {}
        options: dict[str, TensorValue] = {"truncate": True, **self.options, "top_k": -1}
        options = {**options, **raw, **present(self.parameters, "top_k", "function_to_apply")}
        pairs = seconds[0] if seconds else ()
        return Batch(firsts, ("label", "score", NUM_TOKENS), ("inputs",), pairs, options)

    def write(self, answers: Answers, answer_id: str) -> Any:  # noqa: ARG002
        """The labels, the best first: a list, unless of one text or pair that was sent alone."""
        columns = zip(answers.rows["label"], answers.rows["score"], strict=True)
        found = [[Prediction(*one) for one in zip(*row, strict=True)] for row in columns]
        is_list = isinstance(self.inputs, list) and isinstance(self.inputs[0], list)
        return found if is_list else found[0]


class HubPredictRequest(PredictRequest, kw_only=True):
    """The same as the Hub asks it: the answer is a list of lists, whatever was sent."""

    def write(self, answers: Answers, answer_id: str) -> Any:
        """The labels, the best first."""
        found = super().write(answers, answer_id)
        return found if isinstance(found[0], list) else [found]


CLASSIFY = EncoderEndpoint(
    *(("/classify", "/v1/classify"), CLASSIFIER_TASKS, "classify-"),
    Operation("Texts to labels, in vLLM's shape", Labels, ClassifyRequest),
)
PREDICT = EncoderEndpoint(
    *(("/predict",), CLASSIFIER_TASKS, "classify-"),
    Operation("Texts to labels, as TEI", Predicted, PredictRequest, error=HubError),
    by_model=True,
)
PREDICT_OF_HUB = replace(PREDICT, operation=replace(PREDICT.operation, body=HubPredictRequest))
