"""Reads a request's texts row by row, with the options of each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from hf_triton.encoder.texts.row_values import integer_in, one_of, required_texts
from hf_triton.runtime.errors import LoadError, RequestError
from hf_triton.runtime.request.tensors import RequestFields, boolean, each_row

from .options import Options

_INPUTS = ("text_input", "aggregation_strategy", "ignore_labels", "stride", "truncate")
STRATEGIES = ("none", "simple", "first", "average", "max")
_BY_WORDS = ("first", "average", "max")
_LABELS_SHOWN = 40


@dataclass(frozen=True)
class Tagging:
    """One row of a request. ``stride`` None: no windows; ``truncate`` None: as the model's option
    says.
    """

    text: str
    strategy: str
    ignored: frozenset[str]
    stride: int | None
    truncate: bool | None


class TaggingReader:
    """Reads requests of one model."""

    def __init__(self, options: Options, labels: Iterable[str], longest_stride: int | None) -> None:
        """``longest_stride`` is None where the tokenizer tells no offsets: such a model knows
        neither words nor windows.

        Raises:
            LoadError: an option that this model can't follow.
        """
        self._options = options
        self._longest_stride = longest_stride
        found = set(labels)
        self._labels = {*found, *(label.split("-", 1)[-1] for label in found)}
        self._ignored = self._default_ignored()
        try:
            self._check_strategy(options.aggregation_strategy)
            if options.stride is not None:
                self._check_stride(options.stride)
        except RequestError as error:
            raise LoadError(f"options: {error}") from None

    def read(self, fields: RequestFields) -> list[Tagging]:
        """The rows of a request.

        Raises:
            RequestError: names the field, what was got and what is allowed.
        """
        fields.check_parameters(_INPUTS)
        fields.count_rows(*_INPUTS)
        default = self._options.aggregation_strategy
        columns = zip(
            required_texts(fields, "text_input"),
            fields.values("aggregation_strategy", one_of(*STRATEGIES), default),
            self._ignored_labels(fields),
            fields.values("stride", integer_in(0), None),
            fields.values("truncate", boolean, None),
            strict=True,
        )
        return each_row(lambda values: self._checked(Tagging(*values)), columns)

    def _checked(self, row: Tagging) -> Tagging:
        """Fills in the model's stride; raises for conflicting options."""
        self._check_strategy(row.strategy)
        if row.stride is None:
            wants_windows = row.strategy != "none" and not row.truncate
            return replace(row, stride=self._options.stride if wants_windows else None)
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
        if strategy in _BY_WORDS and self._longest_stride is None:
            raise RequestError(
                f"aggregation_strategy: got {strategy}, allowed: none, simple; this model's "
                "tokenizer (it has no tokenizer.json) does not tell words"
            )

    def _check_stride(self, stride: int) -> None:
        if self._longest_stride is None:
            raise RequestError(
                "stride: not possible with this model, whose tokenizer (it has no tokenizer.json) "
                "tells no offsets; send truncate: true to cut a long text"
            )
        if stride > self._longest_stride:
            raise RequestError(f"stride: got {stride}, allowed: 0 to {self._longest_stride}")

    def _default_ignored(self) -> frozenset[str]:
        """The labels of the option; "O" need not be among the model's."""
        listed = self._options.ignore_labels.split(",")
        found = frozenset(filter(None, map(str.strip, listed)))
        unknown = sorted(found - self._labels - {"O"})
        if unknown:
            raise LoadError(f"ignore_labels: got {', '.join(unknown)}, {self._allowed()}")
        return found

    def _ignored_labels(self, fields: RequestFields) -> list[frozenset[str]]:
        """The labels that each row ignores; an empty text ignores none."""
        rows = fields.text_lists("ignore_labels")
        if not fields.has_tensor("ignore_labels") and "ignore_labels" not in fields.parameters:
            return [self._ignored for _ in rows]
        if not frozenset(label for row in rows for label in row) <= {*self._labels, "O"}:
            raise RequestError(
                f"ignore_labels: got a label that this model has not, {self._allowed()}"
            )
        return [frozenset(row) for row in rows]

    def _allowed(self) -> str:
        labels = sorted(self._labels)
        more = f" and {len(labels) - _LABELS_SHOWN} more" if len(labels) > _LABELS_SHOWN else ""
        return f"allowed: {', '.join(labels[:_LABELS_SHOWN])}{more}"
