"""Token classification as a task of the encoder engine: one row of logits for each token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from hf_encoder.encoding import Encoding
from hf_encoder.json_output import JsonRow, json_request
from hf_encoder.request_texts import required_texts
from hf_encoder.row_values import integer_in, one_of
from hf_encoder.task import Array, EncoderTask, Prepared, TaskSetup
from hf_encoder.windows import WindowCutter
from hf_runtime.errors import LoadError, RequestError
from hf_runtime.tensors import RequestFields, boolean

from .entities import STRATEGIES, Entity, EntityMaker, merged
from .tagged import TokenReader, Window

INPUTS = ("text_input", "aggregation_strategy", "ignore_labels", "stride", "truncate")
_BY_WORDS = ("first", "average", "max")
_LABELS_SHOWN = 40


@dataclass(frozen=True)
class _Row:
    """One text and how its answer is to look. ``stride`` None: no windows."""

    text: str
    strategy: str
    ignored: frozenset[str]
    stride: int | None
    truncate: bool | None


class TokenClassification(EncoderTask):
    """Taggers: named entities, parts of speech, and whatever else tokens are."""

    auto_class = "AutoModelForTokenClassification"
    output = "tokens"

    def __init__(self, setup: TaskSetup) -> None:
        super().__init__(setup)
        tokenizer, options = setup.tokenization.tokenizer, setup.options
        self._is_fast = bool(tokenizer.is_fast)
        if not self._is_fast and (
            options.stride is not None or options.aggregation_strategy in _BY_WORDS
        ):
            raise LoadError(
                "stride and the aggregation strategies first, average and max need a fast "
                "tokenizer (a tokenizer.json), which this model has not; use simple or none"
            )
        labels = dict(setup.config.id2label or {})
        self._known = {*labels.values(), *(label.split("-", 1)[-1] for label in labels.values())}
        self._ignored = self._default_ignored(options.ignore_labels)
        self._reader = TokenReader(tokenizer)
        self._maker = EntityMaker(labels, tokenizer.convert_tokens_to_string)
        if self._is_fast:
            self._cutter = WindowCutter(setup.tokenization, max_num_windows=options.max_num_windows)
            self._check_default_stride()

    def prepare(self, fields: RequestFields, wanted: frozenset[str]) -> Prepared:
        """Reads and tokenises texts: one encoding each, or one for each window."""
        fields.check_parameters(INPUTS)
        fields.count_rows(*INPUTS)
        rows = [self._json_row(row) for row in self._rows(fields)]
        return json_request(rows, batched=self.setup.batched)

    def _rows(self, fields: RequestFields) -> list[_Row]:
        options = self.setup.options
        columns = zip(
            required_texts(fields, "text_input"),
            fields.values(
                "aggregation_strategy", one_of(*STRATEGIES), options.aggregation_strategy
            ),
            self._ignored_labels(fields),
            fields.values("stride", integer_in(0), None),
            fields.values("truncate", boolean, None),
            strict=True,
        )
        return [self._checked(_Row(*values)) for values in columns]

    def _checked(self, row: _Row) -> _Row:
        """Fills in the model's own stride; refuses what does not go together."""
        if row.strategy in _BY_WORDS and not self._is_fast:
            raise RequestError(
                f"aggregation_strategy: got {row.strategy}, allowed: none, simple; this model's "
                "tokenizer does not tell words"
            )
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

    def _check_stride(self, stride: int) -> None:
        if not self._is_fast:
            raise RequestError(
                "stride: this model can't use it, its tokenizer tells no offsets; send truncate: "
                "true to cut a long text"
            )
        most = self._cutter.room(self.setup.tokenization.max_length, pair=False) - 1
        if stride > most:
            raise RequestError(f"stride: got {stride}, allowed: 0 to {most}")

    def _check_default_stride(self) -> None:
        if self.setup.options.stride is not None:
            try:
                self._check_stride(self.setup.options.stride)
            except RequestError as error:
                raise LoadError(f"options: {error}") from None

    def _default_ignored(self, listed: str) -> frozenset[str]:
        """The labels of the option; "O" need not be among the model's."""
        found = frozenset(filter(None, map(str.strip, listed.split(","))))
        unknown = sorted(found - self._known - {"O"})
        if unknown:
            raise LoadError(f"ignore_labels: got {', '.join(unknown)}, {self._allowed()}")
        return found

    def _ignored_labels(self, fields: RequestFields) -> list[frozenset[str]]:
        """The labels that each row ignores; an empty text ignores none."""
        rows = fields.text_lists("ignore_labels")
        if not fields.has_tensor("ignore_labels") and "ignore_labels" not in fields.parameters:
            return [self._ignored for _ in rows]
        if any(label not in self._known and label != "O" for row in rows for label in row):
            raise RequestError(
                f"ignore_labels: got a label that this model has not, {self._allowed()}"
            )
        return [frozenset(row) for row in rows]

    def _allowed(self) -> str:
        labels = sorted(self._known)
        more = f" and {len(labels) - _LABELS_SHOWN} more" if len(labels) > _LABELS_SHOWN else ""
        return f"allowed: {', '.join(labels[:_LABELS_SHOWN])}{more}"

    def _json_row(self, row: _Row) -> JsonRow:
        windows, encodings = self._whole(row) if row.stride is None else self._windows(row)
        return JsonRow(encodings, partial(self._answer, row, windows))

    def _whole(self, row: _Row) -> tuple[list[Window], list[Encoding]]:
        tokenization = self.setup.tokenization
        found = tokenization.tokens(
            "text_input",
            row.text,
            truncate=row.truncate,
            return_special_tokens_mask=True,
            return_offsets_mapping=self._is_fast,
        )
        positions = _ordinary(found["special_tokens_mask"])
        window = Window(found["input_ids"], positions, found.get("offset_mapping"))
        if not positions:
            return [], []
        return [window], [tokenization.as_encoding(found, positions)]

    def _windows(self, row: _Row) -> tuple[list[Window], list[Encoding]]:
        max_length = self.setup.tokenization.max_length
        assert row.stride is not None
        cut = self._cutter.cut(
            "text_input",
            self._cutter.pieces("text_input", row.text, max_length),
            max_length=max_length,
            stride=row.stride,
            cuts=False,
        )
        windows = [Window(w.ids, _ordinary(w.special_tokens_mask), w.offsets) for w in cut]
        encodings = [
            self._cutter.encoding(found, window.positions)
            for found, window in zip(cut, windows, strict=True)
        ]
        return windows, encodings

    def _answer(
        self, row: _Row, windows: Sequence[Window], logits: Sequence[Array]
    ) -> list[Entity]:
        """``logits``: (positions, labels) of each window."""
        found = []
        for window, one in zip(windows, logits, strict=True):
            tokens = self._reader.read(row.text, window, one)
            found.append(self._maker.entities(tokens, row.strategy, row.ignored))
        return merged(found)


def _ordinary(special_tokens_mask: Sequence[int]) -> tuple[int, ...]:
    """The tokens that are the text's own."""
    return tuple(i for i, special in enumerate(special_tokens_mask) if not special)
