"""Text classification as a task of the encoder engine: one logit per label of a text or a pair.

Logits become scores, and scores the best labels, as in transformers' pipeline; the score of a
reranker as in sentence-transformers' CrossEncoder. Sources: transformers,
pipelines/text_classification.py, ``postprocess``; sentence-transformers,
cross_encoder/CrossEncoder.py, ``get_default_activation_fn``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from hf_triton.encoder.rows import TEXT, Values, filled, one_of, option, required_texts
from hf_triton.encoder.sentence_transformers.prompts import Prompts
from hf_triton.encoder.sentence_transformers.reading import SentenceFiles, activation
from hf_triton.encoder.task import EncoderTask, Prepared, TaskSetup, token_counts
from hf_triton.encoder.texts.encoding import Encoding
from hf_triton.runtime.errors import RequestError
from hf_triton.runtime.request.responder import Array, strings
from hf_triton.runtime.request.tensors import RequestFields, boolean, each_row, integer, text


class TextClassification(EncoderTask):
    """Classifiers, regression models and rerankers: every model with a sequence head."""

    auto_class = "AutoModelForSequenceClassification"
    saved_as = ("CrossEncoder",)
    takes_list = True

    def __init__(self, setup: TaskSetup) -> None:
        super().__init__(setup)
        self._functions = dict(FUNCTIONS)
        self._default = setup.options.function_to_apply
        if self._default == "auto":
            self._functions["auto"] = default_function(setup.config, setup.saved)
        self._prompts = Prompts(setup.saved, None, setup.tokenization)
        self._id2label: Mapping[int, str] = setup.config.id2label or {}
        self.columns = {
            TEXT: _texts,
            "text_pair": self._pairs,
            "prompt_name": option(text, None),
            "top_k": option(_top_k, self.setup.options.top_k),
            "function_to_apply": option(one_of(*FUNCTIONS), self._default),
            "truncate": option(boolean, None),
        }

    def _pairs(self, fields: RequestFields, name: str) -> list[str | None]:
        if self.setup.options.pairs == "required":
            return [*required_texts(fields, name, [TEXT])]
        found = fields.optional_texts(name)
        return each_row(lambda pair: None if pair is None else filled(name, pair), found)

    def row(self, row: Values) -> Prepared:
        field, pair = row["field"], row["text_pair"]
        encoding = self.setup.tokenization.encode(
            field if pair is None else f"{field} and text_pair",
            row[TEXT],
            pair,
            prompt=self._prompts.text(row["prompt_name"]),
            truncate=row["truncate"],
        )
        return Prepared([encoding], partial(self._answer, row, encoding))

    @torch.inference_mode()
    def _answer(self, row: Values, encoding: Encoding, logits: list[Array]) -> Mapping[str, Array]:
        """``logits``: (labels,)."""
        scores = self._functions[row["function_to_apply"]](torch.tensor(logits[0])).numpy()
        # Of equal scores the first comes first; a negative top_k is all.
        order: Array = np.argsort(-scores, kind="stable")
        chosen = order if row["top_k"] < 0 else order[: row["top_k"]]
        labels = (self._id2label.get(index, f"LABEL_{index}") for index in chosen.tolist())
        return {
            "label": strings([*map(str, labels)]),
            "score": scores[chosen],
            "logits": logits[0],
            **token_counts(encoding),
        }


def _texts(fields: RequestFields, name: str) -> list[str]:
    partners = ["text_pair"] if fields.is_given("text_pair") else []
    return required_texts(fields, name, partners)


def _top_k(name: str, value: Any) -> int:
    top_k = integer(name, value)
    if top_k == 0 or top_k < -1:
        raise RequestError(f"{name}: got {top_k}, allowed: -1 (all labels) or 1 and more")
    return top_k


FUNCTIONS: dict[str, nn.Module] = {
    "softmax": nn.Softmax(dim=-1),
    "sigmoid": nn.Sigmoid(),
    "none": nn.Identity(),
}


def default_function(config: Any, saved: SentenceFiles) -> nn.Module:
    """The function where models.yaml names none. Raises LoadError for an unknown one."""
    problem, num_labels = config.problem_type, config.num_labels
    written = getattr(config, "sentence_transformers", None) or {}
    older = getattr(config, "sbert_ce_default_activation_function", None)
    name = saved.activation_fn or written.get("activation_fn", older)
    if name is not None:
        own = activation("activation_fn", name)
        # For several labels sentence-transformers returns logits by default.
        if num_labels == 1 or not isinstance(own, nn.Identity):
            return FUNCTIONS["softmax"] if isinstance(own, nn.Softmax) else own
    elif saved.kind is not None and num_labels == 1:
        return FUNCTIONS["sigmoid"]
    if problem == "regression":
        return FUNCTIONS["none"]
    is_single = problem != "multi_label_classification" and num_labels > 1
    return FUNCTIONS["softmax" if is_single else "sigmoid"]
