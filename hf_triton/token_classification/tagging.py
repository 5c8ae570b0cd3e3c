"""Token classification as a task of the encoder engine: one row of logits for each token."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from hf_triton.encoder.answers.rows import JsonRow, json_request
from hf_triton.encoder.task import Array, EncoderTask, Prepared, TaskSetup
from hf_triton.encoder.texts.encoding import Encoding
from hf_triton.encoder.texts.windows import WindowSplitter
from hf_triton.runtime.errors import RequestError
from hf_triton.runtime.request.tensors import RequestFields, each_row

from .entities import Entity, EntityMaker, merged
from .request import Tagging, TaggingReader
from .tagged import TokenReader, Window


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
        self._tokens = TokenReader(tokenizer)
        self._maker = EntityMaker(labels, tokenizer.convert_tokens_to_string)

    def prepare(self, fields: RequestFields, wanted: frozenset[str]) -> Prepared:
        """Reads and tokenises texts: one encoding each, or one for each window."""
        rows = each_row(self._row, self._reader.read(fields))
        return json_request(rows, batched=self.setup.batched)

    def _row(self, row: Tagging) -> JsonRow:
        windows, encodings = self._whole(row) if row.stride is None else self._windows(row)
        return JsonRow(encodings, partial(self._answer, row, windows))

    def _whole(self, row: Tagging) -> tuple[list[Window], list[Encoding]]:
        tokenization = self.setup.tokenization
        found = tokenization.tokens(
            "text_input",
            row.text,
            truncate=row.truncate,
            return_special_tokens_mask=True,
            return_offsets_mapping=self._splitter is not None,
        )
        positions = _ordinary(found["special_tokens_mask"])
        if not positions:
            raise RequestError("text_input: the tokenizer makes no token of it, a text is required")
        window = Window(found["input_ids"], positions, found.get("offset_mapping"))
        return [window], [tokenization.as_encoding(found, positions)]

    def _windows(self, row: Tagging) -> tuple[list[Window], list[Encoding]]:
        assert self._splitter is not None, "the request's reader knows what is possible"
        assert row.stride is not None
        max_length = self.setup.tokenization.max_length
        pieces = self._splitter.pieces("text_input", row.text, max_length, cuts=False)
        found = self._splitter.cut(
            "text_input", pieces, max_length=max_length, stride=row.stride, cuts=False
        )
        windows = [
            Window(one.ids, _ordinary(one.special_tokens_mask), one.offsets) for one in found
        ]
        pairs = zip(found, windows, strict=True)
        return windows, [self._splitter.encoding(one, window.positions) for one, window in pairs]

    def _answer(
        self, row: Tagging, windows: Sequence[Window], logits: Sequence[Array]
    ) -> list[Entity]:
        """``logits``: (positions, labels) of each window."""
        found = []
        for window, one in zip(windows, logits, strict=True):
            tokens = self._tokens.read(row.text, window, one)
            found.append(self._maker.entities(tokens, row.strategy, row.ignored))
        return merged(found)


def _ordinary(special_tokens_mask: Sequence[int]) -> tuple[int, ...]:
    return tuple(i for i, special in enumerate(special_tokens_mask) if not special)
