"""Token classification as a task of the encoder engine: one row of logits for each token.

transformers' own pipeline makes entities of the scores, and one list of overlapping windows'.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
from transformers.pipelines.token_classification import (
    AggregationStrategy,
    TokenClassificationPipeline,
)

from hf_triton.encoder.answers.rows import JsonRow, json_request, softmax
from hf_triton.encoder.task import Array, EncoderTask, Prepared, TaskSetup
from hf_triton.encoder.texts.truncation import Tokens
from hf_triton.encoder.texts.windows import WindowSplitter
from hf_triton.runtime.errors import RequestError
from hf_triton.runtime.request.tensors import RequestFields, each_row

from .request import Tagging, TaggingReader

Entity = dict[str, Any]


class TokenClassification(EncoderTask):
    """Tags tokens: named entities, parts of speech and others."""

    auto_class = "AutoModelForTokenClassification"
    output = "tokens"

    def __init__(self, setup: TaskSetup) -> None:
        super().__init__(setup)
        tokenizer = setup.tokenization.tokenizer
        self._splitter, longest_stride = None, None
        if tokenizer.is_fast:
            most = setup.options.max_num_windows
            self._splitter = WindowSplitter(setup.tokenization, max_num_windows=most)
            longest_stride = self._splitter.room(setup.tokenization.max_length, pair=False) - 1
        labels = dict(setup.config.id2label or {})
        self._reader = TaggingReader(setup.options, labels.values(), longest_stride)
        self._entities = _EntityMaker(tokenizer, labels)

    def prepare(self, fields: RequestFields, wanted: frozenset[str]) -> Prepared:
        """Reads and tokenises texts: one encoding each, or one for each window."""
        rows = each_row(self._row, self._reader.read(fields))
        return json_request(rows, batched=self.setup.batched)

    def _row(self, row: Tagging) -> JsonRow:
        windows = [self._whole(row)] if row.stride is None else self._windows(row)
        as_encoding = self.setup.tokenization.as_encoding
        encodings = [as_encoding(window, _ordinary(window)) for window in windows]
        return JsonRow(encodings, partial(self._answer, row, windows))

    def _whole(self, row: Tagging) -> Tokens:
        tokenization = self.setup.tokenization
        found = tokenization.tokens("text_input", row.text, truncate=row.truncate, has_places=True)
        if not _ordinary(found):
            raise RequestError("text_input: the tokenizer makes no token of it, a text is required")
        return found

    def _windows(self, row: Tagging) -> Sequence[Tokens]:
        assert self._splitter is not None, "the request's reader knows what is possible"
        assert row.stride is not None
        max_length = self.setup.tokenization.max_length
        pieces = self._splitter.pieces("text_input", row.text, max_length, cuts=False)
        return self._splitter.cut(
            "text_input", pieces, max_length=max_length, stride=row.stride, cuts=False
        )

    def _answer(
        self, row: Tagging, windows: Sequence[Tokens], logits: Sequence[Array]
    ) -> list[Entity]:
        """``logits``: (ordinary tokens, labels) of each window."""
        found: list[Entity] = []
        for window, one in zip(windows, logits, strict=True):
            found += self._entities.of_window(row, window, softmax(one))
        return self._entities.merged(found) if len(windows) > 1 else found


class _EntityMaker:
    """Calls the steps of transformers' pipeline that need no model."""

    def __init__(self, tokenizer: Any, id2label: dict[int, str]) -> None:
        warnings.filterwarnings("ignore", "Tokenizer does not support real words")
        config = SimpleNamespace(id2label=id2label)
        make: Any = TokenClassificationPipeline.__new__
        self._pipeline: Any = make(TokenClassificationPipeline)
        vars(self._pipeline).update(tokenizer=tokenizer, model=SimpleNamespace(config=config))
        self.merged = self._pipeline.aggregate_overlapping_entities

    def of_window(self, row: Tagging, window: Tokens, scores: Array) -> list[Entity]:
        """The entities of one window in the order of its text, without ignored labels; ``scores``
        are (ordinary tokens, labels).
        """
        places = list(_ordinary(window))
        of_all = np.zeros((len(window.ids), scores.shape[1]), dtype=scores.dtype)
        of_all[places] = scores
        strategy = AggregationStrategy(row.strategy)
        tokens = self._pipeline.gather_pre_entities(
            row.text, window.ids, of_all, window.offsets, window.special_tokens_mask, strategy
        )
        found = self._pipeline.aggregate(tokens, strategy)
        return [
            {**entity, "score": float(entity["score"])}
            for entity in found
            if not _is_ignored(entity, row.ignored)
        ]


def _is_ignored(entity: Entity, ignored: Collection[str]) -> bool:
    return entity.get("entity") in ignored or entity.get("entity_group") in ignored


def _ordinary(window: Tokens) -> tuple[int, ...]:
    """The places of a window's tokens that are not special ones."""
    return tuple(i for i, special in enumerate(window.special_tokens_mask) if not special)
