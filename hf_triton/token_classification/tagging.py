"""Token classification as a task of the encoder engine: one row of logits for each token.

transformers' own pipeline makes entities of the scores, and one list of overlapping windows'.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
from transformers.pipelines.token_classification import (
    AggregationStrategy,
    TokenClassificationPipeline,
)

from hf_triton.encoder.rows import (
    JsonRow,
    count_rows,
    integer_in,
    json_request,
    one_of,
    required_texts,
    softmax,
)
from hf_triton.encoder.task import Array, EncoderTask, Prepared, TaskSetup
from hf_triton.encoder.texts.encoding import Encoding
from hf_triton.encoder.texts.truncation import Tokens, WindowSplitter
from hf_triton.runtime.errors import LoadError, RequestError
from hf_triton.runtime.request.tensors import RequestFields, boolean, each_row

INPUTS = ("text_input", "aggregation_strategy", "ignore_labels", "stride", "truncate")
STRATEGIES = ("none", "simple", "first", "average", "max")
_WORD_STRATEGIES = ("first", "average", "max")
_LABELS_SHOWN = 40
Entity = dict[str, Any]


@dataclass(frozen=True)
class _Row:
    """One row of a request. ``stride`` None: no windows."""

    text: str
    strategy: str
    ignored: frozenset[str]
    stride: int | None
    truncate: bool | None


class TokenClassification(EncoderTask):
    auto_class = "AutoModelForTokenClassification"
    output = "tokens"

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

    def prepare(self, fields: RequestFields, wanted: frozenset[str]) -> Prepared:
        count_rows(fields, INPUTS)
        default = self.setup.options.aggregation_strategy
        columns = zip(
            required_texts(fields, "text_input"),
            fields.values("aggregation_strategy", one_of(*STRATEGIES), default),
            self._ignored_labels(fields),
            fields.values("stride", integer_in(0), None),
            fields.values("truncate", boolean, None),
            strict=True,
        )
        rows = each_row(lambda values: self._checked(_Row(*values)), columns)
        return json_request(each_row(self._row, rows), batched=self.setup.batched)

    def _ignored_labels(self, fields: RequestFields) -> list[frozenset[str]]:
        """The labels that each row ignores; an empty text ignores none."""
        rows = fields.text_lists("ignore_labels")
        if not fields.has_tensor("ignore_labels") and "ignore_labels" not in fields.parameters:
            return [self._ignored for _ in rows]
        if not {label for row in rows for label in row} <= {*self._labels, "O"}:
            allowed = self._allowed_labels()
            raise RequestError(f"ignore_labels: got a label that this model has not, {allowed}")
        return [frozenset(row) for row in rows]

    def _allowed_labels(self) -> str:
        labels = sorted(self._labels)
        more = f" and {len(labels) - _LABELS_SHOWN} more" if len(labels) > _LABELS_SHOWN else ""
        return f"allowed: {', '.join(labels[:_LABELS_SHOWN])}{more}"

    def _checked(self, row: _Row) -> _Row:
        """Fills in the model's stride; raises RequestError for conflicting options."""
        self._check_strategy(row.strategy)
        if row.stride is None:
            wants_windows = row.strategy != "none" and not row.truncate
            return replace(row, stride=self.setup.options.stride if wants_windows else None)
        if row.truncate:
            raise RequestError("stride and truncate: both given, send one of them")
        if row.strategy == "none":
            raise RequestError(
                "stride: given with aggregation_strategy none, allowed: with simple, first, "
                "average or max; tokens alone can't be merged over windows"
            )
        self._check_stride(row.stride)
        return row

    def _check_strategy(self, strategy: str) -> None:
        if strategy in _WORD_STRATEGIES and self._splitter is None:
            raise RequestError(
                f"aggregation_strategy: got {strategy}, allowed: none, simple; this model's "
                "tokenizer (it has no tokenizer.json) does not tell words"
            )

    def _check_stride(self, stride: int) -> None:
        if self._splitter is None:
            raise RequestError(
                "stride: not possible with this model, whose tokenizer (it has no tokenizer.json) "
                "tells no offsets; send truncate: true to cut a long text"
            )
        if stride > self._longest_stride:
            raise RequestError(f"stride: got {stride}, allowed: 0 to {self._longest_stride}")

    def _row(self, row: _Row) -> JsonRow:
        tokenization = self.setup.tokenization
        windows: Sequence[Tokens]
        if row.stride is None:
            windows = [
                tokenization.tokens("text_input", row.text, truncate=row.truncate, has_places=True)
            ]
        else:
            assert self._splitter is not None, "_check_stride has refused others"
            length = tokenization.max_length
            pieces = self._splitter.pieces("text_input", row.text, length, cuts=False)
            windows = self._splitter.windows(
                "text_input", pieces, max_length=length, stride=row.stride, cuts=False
            )
        encodings = [tokenization.as_encoding(window, _ordinary(window)) for window in windows]
        if not encodings[0].positions:
            raise RequestError("text_input: the tokenizer makes no token of it, a text is required")
        return JsonRow(encodings, partial(self._answer, row, windows, encodings))

    def _answer(
        self,
        row: _Row,
        windows: Sequence[Tokens],
        encodings: Sequence[Encoding],
        logits: Sequence[Array],
    ) -> list[Entity]:
        """The entities in the order of the text, without ignored labels. ``logits``: (ordinary
        tokens, labels) of each window.
        """
        strategy, found = AggregationStrategy(row.strategy), []
        for window, encoding, one in zip(windows, encodings, logits, strict=True):
            scores = np.zeros((len(window.ids), one.shape[1]), dtype=one.dtype)
            scores[list(encoding.positions or ())] = softmax(one)
            tokens = self._pipeline.gather_pre_entities(
                row.text, window.ids, scores, window.offsets, window.special_tokens_mask, strategy
            )
            found += [
                {**entity, "score": float(entity["score"])}
                for entity in self._pipeline.aggregate(tokens, strategy)
                if not {entity.get("entity"), entity.get("entity_group")} & row.ignored
            ]
        if len(windows) > 1:
            found = self._pipeline.aggregate_overlapping_entities(found)
        return found


def _ordinary(window: Tokens) -> tuple[int, ...]:
    """The places of a window's tokens that are not special ones."""
    return tuple(i for i, special in enumerate(window.special_tokens_mask) if not special)
