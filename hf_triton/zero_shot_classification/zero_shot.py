"""Zero-shot classification as a task of the encoder engine: one pair of texts for each label.

The text is the premise, the label in its sentence the hypothesis; a label's score is how far the
premise entails it: transformers, pipelines/zero_shot_classification.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from hf_triton.encoder.rows import (
    count_rows,
    filled,
    number_rows,
    required_texts,
    softmax,
    text_rows,
)
from hf_triton.encoder.task import Array, EncoderTask, Prepared, TaskSetup
from hf_triton.encoder.texts.encoding import Encoding
from hf_triton.runtime import log
from hf_triton.runtime.errors import LoadError, RequestError
from hf_triton.runtime.request.json_text import written
from hf_triton.runtime.request.tensors import RequestFields, boolean, check_labels, each_row, text

from .options import hypothesis, template_problem

INPUTS = ("text_input", "candidate_labels", "hypothesis_template", "multi_label", "truncate")


@dataclass(frozen=True)
class _Row:
    text: str
    labels: tuple[str, ...]
    template: str
    multi_label: bool
    truncate: bool | None


class ZeroShotClassification(EncoderTask):
    auto_class = "AutoModelForSequenceClassification"
    output = "sequences"

    def __init__(self, setup: TaskSetup) -> None:
        super().__init__(setup)
        if setup.config.num_labels < 2:
            raise LoadError(
                "zero-shot-classification needs a model for natural language inference, with a "
                f"label for entailment and one against it; this one has {setup.config.num_labels}"
            )
        self._entailment = entailment_id(setup.config)
        self._contradiction = -1 if self._entailment == 0 else 0

    def prepare(self, fields: RequestFields, wanted: frozenset[str]) -> Prepared:
        count_rows(fields, INPUTS)
        options = self.setup.options
        columns = zip(
            required_texts(fields, "text_input", "candidate_labels"),
            each_row(candidate_labels, fields.text_lists("candidate_labels")),
            fields.values("hypothesis_template", _template, options.hypothesis_template),
            fields.values("multi_label", boolean, options.multi_label),
            fields.values("truncate", boolean, None),
            strict=True,
        )
        rows = [_Row(*values) for values in columns]
        encodings = [encoding for own in each_row(self._encode, rows) for encoding in own]
        return Prepared(encodings, partial(self._answer, rows))

    def _encode(self, row: _Row) -> list[Encoding]:
        return self.setup.tokenization.pairs(
            "text_input with candidate_labels",
            row.text,
            [hypothesis(row.template, label) for label in row.labels],
            truncate=row.truncate,
        )

    def _answer(self, rows: list[_Row], logits: list[Array]) -> Mapping[str, Array]:
        """``logits``: (labels of the model,) for each label of each row."""
        left = iter(logits)
        scored = [self._scores(row, np.stack([next(left) for _ in row.labels])) for row in rows]
        order = [np.argsort(scores)[::-1] for scores in scored]
        labels = [[row.labels[i] for i in found] for row, found in zip(rows, order, strict=True)]
        scores = [one[found] for one, found in zip(scored, order, strict=True)]
        texts = [
            [written({"sequence": row.text, "labels": found, "scores": one.tolist()})]
            for row, found, one in zip(rows, labels, scores, strict=True)
        ]
        batched = self.setup.batched
        return {
            "label": text_rows(labels, batched=batched),
            "score": number_rows(scores, batched=batched),
            "output": text_rows(texts, batched=batched),
        }

    def _scores(self, row: _Row, logits: Array) -> Array:
        """(labels, labels of the model) -> (labels,). One label alone is weighed against its
        contradiction: its share of all labels would be 1 whatever the text.
        """
        if row.multi_label or len(row.labels) == 1:
            both = logits[:, [self._contradiction, self._entailment]]
            return softmax(both, axis=1)[:, 1]
        return softmax(logits[:, self._entailment], axis=0)


def entailment_id(config: Any) -> int:
    """The index of the label that begins with "entail"; the last one, with a warning, where the
    model's configuration names none.
    """
    for label, index in config.label2id.items():
        if label.lower().startswith("entail"):
            return int(index)
    log.warn(
        "none of the model's labels begins with 'entail': the last one is taken for it, which may "
        "be wrong; name the labels in label2id of its config.json"
    )
    return -1


def candidate_labels(given: tuple[str, ...]) -> tuple[str, ...]:
    """The labels of a row: a list as it is; a single text may hold several, with commas between.
    Raises RequestError for none, or too many.
    """
    check_labels(given)
    labels = given
    if len(given) == 1:
        labels = tuple(filter(None, map(str.strip, given[0].split(","))))
    if not labels:
        raise RequestError(
            "candidate_labels: missing, send text_input and candidate_labels together: one label "
            "or more"
        )
    return tuple(filled("candidate_labels", label) for label in labels)


def _template(name: str, value: Any) -> str:
    template = text(name, value)
    problem = template_problem(template)
    if problem is not None:
        raise RequestError(f"{name}: got a text {problem}")
    return template
