"""Text classification as a task of the encoder engine: one logit per label of a text or a pair.

Logits become scores, and scores the best labels, as in transformers' pipeline; the score of a
reranker as in sentence-transformers' CrossEncoder. Sources: transformers,
pipelines/text_classification.py, ``postprocess``; sentence-transformers,
cross_encoder/CrossEncoder.py, ``get_default_activation_fn``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from hf_triton.encoder.rows import (
    LIST,
    count_rows,
    filled,
    number_rows,
    one_of,
    required_texts,
    text_rows,
    token_counts,
)
from hf_triton.encoder.sentence_transformers.prompts import Prompts
from hf_triton.encoder.sentence_transformers.reading import SentenceFiles, activation
from hf_triton.encoder.task import Array, EncoderTask, Prepared, TaskSetup
from hf_triton.encoder.texts.encoding import Encoding
from hf_triton.runtime.errors import RequestError
from hf_triton.runtime.request.tensors import RequestFields, boolean, each_row, integer, text

INPUTS = (
    *("text_input", LIST, "text_pair", "prompt_name"),
    *("top_k", "function_to_apply", "truncate"),
)


@dataclass(frozen=True)
class _Row:
    """One text or pair, and the form of its answer. ``field`` is the text's tensor."""

    field: str
    text: str
    pair: str | None
    top_k: int
    function: str
    truncate: bool | None
    prompt_name: str | None


class TextClassification(EncoderTask):
    """Classifiers, regression models and rerankers: every model with a sequence head."""

    auto_class = "AutoModelForSequenceClassification"
    output = "sequences"
    saved_as = "CrossEncoder"

    def __init__(self, setup: TaskSetup) -> None:
        super().__init__(setup)
        self._functions = dict(FUNCTIONS)
        self._default = setup.options.function_to_apply
        if self._default == "auto":
            self._functions["auto"] = default_function(setup.config, setup.saved)
        self._prompts = Prompts(setup.saved, None, setup.tokenization)
        self._id2label: Mapping[int, str] = setup.config.id2label or {}

    def prepare(self, fields: RequestFields, wanted: frozenset[str]) -> Prepared:
        name = count_rows(fields, INPUTS)
        pairs = self._pairs(fields, name)
        partners = ["text_pair"] if any(pair is not None for pair in pairs) else []
        columns = zip(
            required_texts(fields, name, *partners),
            pairs,
            fields.values("top_k", _top_k, self.setup.options.top_k),
            fields.values("function_to_apply", one_of(*FUNCTIONS), self._default),
            fields.values("truncate", boolean, None),
            fields.values("prompt_name", text, None),
            strict=True,
        )
        rows = [_Row(name, *values) for values in columns]
        encodings = each_row(self._encode, rows)
        batched = self.setup.batched or name == LIST
        counts = token_counts(encodings, batched=batched)
        return Prepared(encodings, partial(self._answer, rows, counts, batched=batched))

    def _pairs(self, fields: RequestFields, name: str) -> list[str | None]:
        if self.setup.options.pairs == "required":
            return [*required_texts(fields, "text_pair", name)]
        found = fields.optional_texts("text_pair")
        return each_row(lambda pair: None if pair is None else filled("text_pair", pair), found)

    def _encode(self, row: _Row) -> Encoding:
        field = row.field if row.pair is None else f"{row.field} and text_pair"
        prompt = self._prompts.text(row.prompt_name)
        encode = self.setup.tokenization.encode
        return encode(field, row.text, row.pair, prompt=prompt, truncate=row.truncate)

    @torch.inference_mode()
    def _answer(
        self,
        rows: list[_Row],
        counts: Mapping[str, Array],
        logits: list[Array],
        *,
        batched: bool,
    ) -> Mapping[str, Array]:
        """``logits``: (labels,) for each row."""
        pairs = zip(rows, logits, strict=True)
        scores = [self._functions[row.function](torch.tensor(x)).numpy() for row, x in pairs]
        chosen = [best(one, row.top_k) for row, one in zip(rows, scores, strict=True)]
        known = self._id2label
        labels = [[str(known.get(i, f"LABEL_{i}")) for i in found.tolist()] for found in chosen]
        ranked = [one[indices] for one, indices in zip(scores, chosen, strict=True)]
        return {
            "label": text_rows(labels, batched=batched),
            "score": number_rows(ranked, batched=batched),
            "logits": number_rows([np.asarray(one) for one in logits], batched=batched),
            **counts,
        }


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
    if problem == "multi_label_classification" or num_labels == 1:
        return FUNCTIONS["sigmoid"]
    is_single = problem == "single_label_classification" or num_labels > 1
    return FUNCTIONS["softmax" if is_single else "none"]


def best(scores: Array, top_k: int) -> Array:
    """The indices of the ``top_k`` highest scores, best first; all where it is negative or more
    than there are. Of equal scores the first comes first.
    """
    order: Array = np.argsort(-scores, kind="stable")
    return order if top_k < 0 else order[:top_k]
