"""Zero-shot classification as a task of the encoder engine: one pair of texts for each label.

The text is the premise, the label in its sentence the hypothesis; a label's score is how far the
premise entails it: transformers, pipelines/zero_shot_classification.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from hf_triton.encoder.rows import TEXT, Values, filled, option, required_texts, softmax
from hf_triton.encoder.task import EncoderTask, Prepared, TaskSetup
from hf_triton.runtime import log
from hf_triton.runtime.errors import LoadError, RequestError
from hf_triton.runtime.request.json_text import written
from hf_triton.runtime.request.responder import Array, strings
from hf_triton.runtime.request.tensors import boolean, check_labels, each_row, text

from .options import hypothesis, template_problem


class ZeroShotClassification(EncoderTask):
    auto_class = "AutoModelForSequenceClassification"

    def __init__(self, setup: TaskSetup) -> None:
        super().__init__(setup)
        if setup.config.num_labels < 2:
            raise LoadError(
                "zero-shot-classification needs a model for natural language inference, with a "
                f"label for entailment and one against it; this one has {setup.config.num_labels}"
            )
        self._entailment = entailment_id(setup.config)
        self._contradiction = -1 if self._entailment == 0 else 0
        options = setup.options
        self.columns = {
            TEXT: partial(required_texts, partners=["candidate_labels"]),
            "candidate_labels": lambda fields, name: each_row(_labels, fields.text_lists(name)),
            "hypothesis_template": option(_template, options.hypothesis_template),
            "multi_label": option(boolean, options.multi_label),
            "truncate": option(boolean, None),
        }

    def row(self, row: Values) -> Prepared:
        encodings = self.setup.tokenization.pairs(
            "text_input with candidate_labels",
            row[TEXT],
            [hypothesis(row["hypothesis_template"], label) for label in row["candidate_labels"]],
            truncate=row["truncate"],
        )
        return Prepared(encodings, partial(self._answer, row))

    def _answer(self, row: Values, logits: list[Array]) -> Mapping[str, Array]:
        """``logits``: (labels of the model,) for each label."""
        scores = self._scores(np.stack(logits), multi_label=row["multi_label"])
        order = np.argsort(scores)[::-1]
        labels, scores = [row["candidate_labels"][i] for i in order], scores[order]
        found = {"sequence": row[TEXT], "labels": labels, "scores": scores.tolist()}
        return {"label": strings(labels), "score": scores, "output": strings([written(found)])}

    def _scores(self, logits: Array, *, multi_label: bool) -> Array:
        """(labels, labels of the model) -> (labels,). One label alone is weighed against its
        contradiction: its share of all labels would be 1 whatever the text.
        """
        if multi_label or len(logits) == 1:
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


def _labels(given: tuple[str, ...]) -> tuple[str, ...]:
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
