"""Reads a request's tensors and parameters row by row, with the checks that Triton does not do. A
value may come as a tensor or as a parameter of the same name, not as both.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from ..errors import RequestError
from .request_parameters import CACHE_SALT, CALLER, EMPTY_FINAL, salt_of

Row = TypeVar("Row")
Read = TypeVar("Read")

# Parameters that Triton itself adds or reads; and ``user``, which OpenAI's clients send: it changes
# no answer, but a canary can be sticky by it. Nor does what separates callers from each other.
_SERVER_PARAMETERS = {
    *(CACHE_SALT, CALLER, EMPTY_FINAL),
    *("id", "timeout", "priority", "sequence_id", "sequence_start", "sequence_end", "user"),
    *("binary_data_output", "headers"),
}
MAX_TEXTS = 2**16  # texts in one list
MAX_LABELS = 1000  # the model computes the whole text once for each label
_LONGEST_NAME = 64  # characters of an unknown parameter's name that an error shows


class RequestFields:
    """A model is ``batched`` if max_batch_size is above 0; ``num_rows`` is 1 without a batch."""

    def __init__(
        self, inputs: Mapping[str, Any], parameters: Mapping[str, Any], *, batched: bool
    ) -> None:
        self.inputs, self._batched = inputs, batched
        self.parameters: dict[str, Any] = dict(parameters)
        self.num_rows = 1
        self._list: str | None = None  # the tensor whose elements are the rows

    def count_rows(self, *names: str) -> int:
        """Sets ``num_rows`` from the first of these tensors that the request has; 1 without any."""
        tensors = ((name, self.inputs.get(name)) for name in names)
        found = (len(self._rows(name, tensor)) for name, tensor in tensors if tensor is not None)
        self.num_rows = next(found, 1)
        return self.num_rows

    def count_list(self, name: str) -> bool:
        """Makes each element of the tensor ``name`` a row, where there are no batches; other
        tensors have one element, for every row, or as many. Returns False where the request does
        not have it. Raises RequestError for an empty list.
        """
        if self._batched or name not in self.inputs:
            return False
        self._list, self.num_rows = name, int(self.inputs[name].size)
        if not 1 <= self.num_rows <= MAX_TEXTS:
            got = f"a list of {self.num_rows}" if self.num_rows else "an empty list"
            raise RequestError(f"{name}: got {got}, allowed: 1 to {MAX_TEXTS} texts")
        return True

    def optional_texts(self, name: str) -> list[str | None]:
        """The text of each row; None where neither tensor nor parameter gives one."""
        return self.values(name, text, None)

    def values(self, name: str, convert: Callable[[str, Any], Any], default: Any) -> list[Any]:
        """One value per row from the tensor or the parameter ``name``."""
        if not self.is_given(name):
            return [default] * self.num_rows

        def read(row: Sequence[Any]) -> Any:
            if len(row) > 1:
                raise RequestError(f"{name}: got {len(row)} elements, allowed: one")
            return convert(name, row[0]) if len(row) else default

        return self._read(name, read)

    def text_lists(self, name: str) -> list[tuple[str, ...]]:
        """Returns the texts of each row but empty ones. A parameter gives one text."""
        return [tuple(filter(None, row)) for row in self.lists(name, text)]

    def lists(
        self, name: str, convert: Callable[[str, Any], Any], most: int = MAX_TEXTS
    ) -> list[list[Any]]:
        """Reads each row's values. Raises RequestError where there are more than ``most``."""
        array = self.inputs.get(name)
        if array is not None and array.size > most * self.num_rows:
            got = f"{array.size // self.num_rows} elements"
            raise RequestError(f"{name}: got {got}, allowed: at most {most}")
        return self._read(name, lambda row: [convert(name, value) for value in row])

    def raw_lists(self, name: str) -> list[list[Any]]:
        """Returns each row's elements as they came: bytes of a tensor, a text of a parameter."""
        return self.lists(name, lambda _, value: value)

    def is_given(self, name: str) -> bool:
        """True if there is a tensor or a parameter of that name."""
        return self.parameters.get(name) is not None or name in self.inputs

    def check_parameters(self, known: Iterable[str]) -> None:
        """Raises RequestError for a parameter that is none of ``known``, with the nearest one."""
        if not self.parameters:
            return
        salt_of(self.parameters)
        names = sorted(known)
        for name in self.parameters:
            if name not in names and not is_server_parameter(name):
                shown_name = name[:_LONGEST_NAME]
                nearest = difflib.get_close_matches(shown_name, names, 1)
                hint = f", did you mean {nearest[0]}?" if nearest else ""
                allowed = ", ".join(names)
                raise RequestError(
                    f"{shown_name}: unknown parameter{hint or ';'} allowed: {allowed}"
                )

    def _read(self, name: str, read: Callable[[Sequence[Any]], Any]) -> list[Any]:
        rows = self._rows_of(name)
        # A parameter is the same for every row, so an error in it names no row.
        return [read(row) for row in rows] if name in self.parameters else each_row(read, rows)

    def _rows_of(self, name: str) -> list[Sequence[Any]]:
        tensor = self.inputs.get(name)
        given = self.parameters.get(name)
        if tensor is not None and given is not None:
            raise RequestError(f"{name}: given as a tensor and as a parameter, send one of them")
        if tensor is not None:
            return self._rows(name, tensor)
        return [[] if given is None else [given]] * self.num_rows

    def _rows(self, name: str, array: Any) -> list[Sequence[Any]]:
        if self._list is None:
            rows = array.reshape(array.shape[0] if self._batched else 1, -1)
            return list(rows.tolist())
        if array.size not in (1, self.num_rows):
            allowed = f"1 or {self.num_rows}, as many as {self._list}"
            raise RequestError(f"{name}: got {array.size} elements, allowed: {allowed}")
        values = [[value] for value in array.ravel().tolist()]
        return [*values] * self.num_rows if array.size == 1 else [*values]


def each_row(read: Callable[[Row], Read], rows: Iterable[Row]) -> list[Read]:
    """Reads each row; an error names its row, where there are several."""
    rows = list(rows)
    found = []
    for index, row in enumerate(rows):
        try:
            found.append(read(row))
        except RequestError as error:
            if len(rows) == 1:
                raise
            # The row comes last: the OpenAI API reads the field from the text's first words.
            raise type(error)(f"{error} (row {index} of the batch)") from None
    return found


def check_labels(labels: Sequence[str]) -> None:
    """Raises RequestError for too many; a text alone may hold several, with commas between."""
    num_labels = labels[0].count(",") + 1 if len(labels) == 1 else len(labels)
    if num_labels > MAX_LABELS:
        allowed = f"allowed: at most {MAX_LABELS}"
        raise RequestError(f"candidate_labels: got {num_labels} labels, {allowed}")


def is_server_parameter(parameter: str) -> bool:
    """True if a parameter is for the server or its operator, not for the model."""
    return parameter in _SERVER_PARAMETERS or parameter.startswith("triton_")


def text(name: str, value: Any) -> str:
    """The value as a text; bytes must be valid UTF-8."""
    if isinstance(value, str):
        return value
    if not isinstance(value, bytes):
        raise RequestError(f"{name}: got {kind_of(value)}, allowed: a text")
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RequestError(f"{name}: not valid UTF-8 at byte {error.start}") from None


def integer(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise RequestError(f"{name}: got {kind_of(value)}, allowed: an integer")
    return value


def number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RequestError(f"{name}: got {kind_of(value)}, allowed: a number")
    try:
        return float(value)
    except OverflowError:
        raise RequestError(f"{name}: got an integer too large for a number") from None


def boolean(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise RequestError(f"{name}: got {kind_of(value)}, allowed: true or false")
    return value


def kind_of(value: Any) -> str:
    """Describes a value in JSON's words; never shows a text, which may be a prompt or a secret."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return shown(value)
    names: dict[type, str] = {str: "a text", bytes: "a text", list: "a list", dict: "an object"}
    return names.get(type(value), type(value).__name__)


def shown(value: object) -> str:
    """A number as an error shows it; a very long one is only described."""
    if isinstance(value, int) and abs(value) >= 10**30:
        return "an integer of more than 30 digits"
    return str(value)


def timeout_ms(asked: int | None, default: int | None, ceiling: int | None) -> int | None:
    """The request's time limit, at most the ceiling, which is also the default."""
    if asked is None:
        return ceiling if default is None else default
    if asked < 1 or (ceiling is not None and asked > ceiling):
        allowed = "1 and more" if ceiling is None else f"1 to {ceiling} (max_timeout_ms)"
        raise RequestError(f"timeout_ms: got {shown(asked)}, allowed: {allowed}")
    return int(asked)


def check_on_timeout(asked: str) -> None:
    if asked not in ("partial", "error"):
        raise RequestError("on_timeout: got another text, allowed: partial or error")
