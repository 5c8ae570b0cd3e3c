"""Token classification as a task of the encoder engine: one row of logits for each token.

transformers' own pipeline makes entities of the scores, and one list of overlapping windows'.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
from transformers.pipelines.token_classification import (
    AggregationStrategy,
    TokenClassificationPipeline,
)

from hf_triton.encoder.rows import TEXT, Values, integer_in, one_of, option, required_texts, softmax
from hf_triton.encoder.task import EncoderTask, Prepared, TaskSetup
from hf_triton.encoder.texts.encoding import Encoding
from hf_triton.encoder.texts.truncation import Tokens, WindowSplitter
from hf_triton.runtime.errors import LoadError, RequestError
from hf_triton.runtime.request.json_text import written
from hf_triton.runtime.request.responder import Array, strings
from hf_triton.runtime.request.tensors import RequestFields, boolean

STRATEGIES = ("none", "simple", "first", "average", "max")
_WORD_STRATEGIES = ("first", "average", "max")
_LABELS_SHOWN = 40


class TokenClassification(EncoderTask):
    auto_class = "AutoModelForTokenClassification"

    def __init__(self, setup: TaskSetup) -> None:
        super().__init__(setup)
        options, tokenization = setup.options, setup.tokenization
        labels = dict(setup.config.id2label or {})
        self._labels = {*labels.values(), *(label.split("-", 1)[-1] for label in labels.values())}
        self._ignored = frozenset(filter(None, map(str.strip, options.ignore_labels.split(","))))
        if unknown := sorted(self._ignored - self._labels - {"O"}):
            raise LoadError(f"ignore_labels: got {', '.join(unknown)}, {self._allowed_labels()}")
        self._splitter, self._longest_stride = None, 0
        if (truncator := tokenization.truncator) is not None:
            self._splitter = WindowSplitter(truncator, options.max_num_windows)
            self._longest_stride = truncator.room(tokenization.max_length, pair=False) - 1
        try:
            self._check_strategy(options.aggregation_strategy)
            if options.stride is not None:
                self._check_stride(options.stride)
        except RequestError as error:
            raise LoadError(f"options: {error}") from None
        # Without a model: only the steps of transformers' pipeline that need none are called.
        warnings.filterwarnings("ignore", "Tokenizer does not support real words")
        make: Any = TokenClassificationPipeline.__new__
        self._pipeline: Any = make(TokenClassificationPipeline)
        model = SimpleNamespace(config=SimpleNamespace(id2label=labels))
        vars(self._pipeline).update(tokenizer=tokenization.tokenizer, model=model)
        self.columns = {
            TEXT: required_texts,
            "aggregation_strategy": option(one_of(*STRATEGIES), options.aggregation_strategy),
            "ignore_labels": self._ignored_labels,
            "stride": option(integer_in(0), None),
            "truncate": option(boolean, None),
        }

    def _ignored_labels(self, fields: RequestFields, name: str) -> list[frozenset[str]]:
        """The labels that each row ignores; an empty text ignores none."""
        if not fields.is_given(name):
            return [self._ignored] * fields.num_rows
        rows = [frozenset(row) for row in fields.text_lists(name)]
        if not frozenset[str]().union(*rows) <= {*self._labels, "O"}:
            allowed = self._allowed_labels()
            raise RequestError(f"{name}: got a label that this model does not have, {allowed}")
        return rows

    def _allowed_labels(self) -> str:
        labels = sorted(self._labels)
        more = f" and {len(labels) - _LABELS_SHOWN} more" if len(labels) > _LABELS_SHOWN else ""
        return f"allowed: {', '.join(labels[:_LABELS_SHOWN])}{more}"

    def _stride(self, row: Values) -> int | None:
        """The overlap of a row's windows; None where it is read without. Raises RequestError for
        options that can't be had together.
        """
        strategy, stride = row["aggregation_strategy"], row["stride"]
        self._check_strategy(strategy)
        if stride is None:
            wants_windows = strategy != "none" and not row["truncate"]
            return self.setup.options.stride if wants_windows else None
        if row["truncate"]:
            raise RequestError("stride and truncate: both given, send one of them")
        if strategy == "none":
            raise RequestError(
                "stride: given with aggregation_strategy none, allowed: with simple, first, "
                "average or max; tokens alone can't be merged over windows"
            )
        self._check_stride(stride)
        return int(stride)

    def _check_strategy(self, strategy: str) -> None:
        if strategy in _WORD_STRATEGIES and self._splitter is None:
            raise RequestError(
                f"aggregation_strategy: got {strategy}, allowed: none, simple; this model's "
                "tokenizer (it has no tokenizer.json) does not mark words"
            )

    def _check_stride(self, stride: int) -> None:
        if self._splitter is None:
            raise RequestError(
                "stride: not possible with this model, whose tokenizer (it has no tokenizer.json) "
                "gives no offsets; send truncate: true to cut a long text"
            )
        if stride > self._longest_stride:
            raise RequestError(f"stride: got {stride}, allowed: 0 to {self._longest_stride}")

    def row(self, row: Values) -> Prepared:
        tokenization, text, stride = self.setup.tokenization, row[TEXT], self._stride(row)
        windows: Sequence[Tokens]
        if stride is None:
            windows = [tokenization.tokens(TEXT, text, truncate=row["truncate"], has_places=True)]
        else:
            assert self._splitter is not None, "_check_stride has refused others"
            length = tokenization.max_length
            pieces = self._splitter.pieces(TEXT, text, length, cuts=False)
            windows = self._splitter.windows(
                TEXT, pieces, max_length=length, stride=stride, cuts=False
            )
        ordinary = (
            tuple(i for i, special in enumerate(window.special_tokens_mask) if not special)
            for window in windows
        )
        encodings = [*map(tokenization.as_encoding, windows, ordinary)]
        if not encodings[0].positions:
            raise RequestError(f"{TEXT}: the tokenizer makes no token of it, send another text")
        return Prepared(encodings, partial(self._answer, row, windows, encodings))

    def _answer(
        self,
        row: Values,
        windows: Sequence[Tokens],
        encodings: Sequence[Encoding],
        logits: Sequence[Array],
    ) -> Mapping[str, Array]:
        """The entities in the order of the text, without ignored labels. ``logits``: (ordinary
        tokens, labels) of each window.
        """
        strategy = AggregationStrategy(row["aggregation_strategy"])
        found: list[dict[str, Any]] = []
        for window, encoding, one in zip(windows, encodings, logits, strict=True):
            scores = np.zeros((len(window.ids), one.shape[1]), dtype=one.dtype)
            scores[list(encoding.positions or ())] = softmax(one)
            tokens = self._pipeline.gather_pre_entities(
                row[TEXT], window.ids, scores, window.offsets, window.special_tokens_mask, strategy
            )
            found += [
                {**entity, "score": float(entity["score"])}
                for entity in self._pipeline.aggregate(tokens, strategy)
                if not {entity.get("entity"), entity.get("entity_group")} & row["ignore_labels"]
            ]
        if len(windows) > 1:
            found = self._pipeline.aggregate_overlapping_entities(found)
        return {"output": strings([written(found)])}
