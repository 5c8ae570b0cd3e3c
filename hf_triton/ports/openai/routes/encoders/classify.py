"""``/classify``: texts to a label and the probability of each label, in vLLM's shape."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from generator.spec.task_sets import CLASSIFIER_TASKS
from hf_triton.ports.openai.openapi_schema import answers as described
from hf_triton.ports.openai.openapi_schema.operation import Operation
from hf_triton.ports.openai.routes.encoders.endpoint import (
    FIELDS,
    NUM_TOKENS,
    Answers,
    Batch,
    Common,
    EncoderEndpoint,
    read_common,
    texts,
)
from hf_triton.ports.openai.schema.body import Body
from hf_triton.ports.openai.triton.catalog import ServedModel

BODY = Body({**FIELDS, "input": texts}, ("model", "input"))


@dataclass(frozen=True)
class ClassifyRequest:
    """One text or more."""

    common: Common
    texts: list[str]

    def batch(self, model: ServedModel) -> Batch:  # noqa: ARG002, as others
        """All texts, with all labels of each."""
        outputs = ("label", "score", "logits", NUM_TOKENS)
        return Batch(self.texts, outputs, ("input",), options={**self.common.options, "top_k": -1})

    def write(self, answers: Answers, answer_id: str) -> dict[str, Any]:
        """VLLM's object."""
        rows = answers.rows
        columns = zip(rows["label"], rows["score"], rows["logits"], strict=True)
        found = [
            {
                "index": index,
                "label": labels[0],
                "probs": _in_order(scores, logits),
                "num_classes": len(logits),
            }
            for index, (labels, scores, logits) in enumerate(columns)
        ]
        return answers.listed(answer_id, self.common.model, found)


def _in_order(scores: array[float], logits: array[float]) -> list[float]:
    """``scores``, the best first, in the order of the labels: no function of the model's puts a
    higher logit below a lower one.
    """
    best = sorted(range(len(logits)), key=logits.__getitem__, reverse=True)
    found = [0.0] * len(scores)
    for index, score in zip(best, scores, strict=True):
        found[index] = score
    return found


def _read(body: Mapping[str, Any]) -> ClassifyRequest:
    common, given = read_common(body, BODY)
    return ClassifyRequest(common, given["input"])


CLASSIFY = EncoderEndpoint(
    *(("/classify", "/v1/classify"), CLASSIFIER_TASKS, "classify-", _read),
    operation=Operation("Texts to labels, in vLLM's shape", described.Labels, BODY),
)
