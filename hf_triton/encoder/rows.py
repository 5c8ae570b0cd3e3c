"""The rows of a request: reads their texts, numbers and words, each with what is allowed, and makes
arrays of their answers, with or without a batch dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from hf_triton.runtime.errors import RequestError
from hf_triton.runtime.request.responder import Array
from hf_triton.runtime.request.tensors import RequestFields, each_row, integer, shown, text

Values = dict[str, Any]
# Reads a field of a request: one value for each row.
Column = Callable[[RequestFields, str], list[Any]]

TEXT = "text_input"
LIST = "input_text"  # LiteLLM's name for a list of texts


def read_rows(
    fields: RequestFields, columns: Mapping[str, Column], *, takes_list: bool
) -> list[Values]:
    """The values of each row by field, and as ``field`` the tensor that has its text: TEXT, or with
    ``takes_list`` LIST, whose every element is a row. Raises RequestError.
    """
    name = TEXT
    fields.check_parameters((*columns, LIST) if takes_list else columns)
    if not takes_list or not fields.count_list(LIST):
        fields.count_rows(*columns)
    elif TEXT in fields.inputs:
        raise RequestError(f"{TEXT} and {LIST}: got both, send one of them")
    else:
        name = LIST
    read = [column(fields, name if one == TEXT else one) for one, column in columns.items()]
    names = ("field", *columns)
    return [dict(zip(names, (name, *row), strict=True)) for row in zip(*read, strict=True)]


def option(convert: Callable[[str, Any], Any], default: Any) -> Column:
    return lambda fields, name: fields.values(name, convert, default)


def given_texts(fields: RequestFields, name: str, partners: Sequence[str] = ()) -> list[str]:
    """The text of each row of a field that a request must have; it may be empty. ``partners`` are
    the fields that are of use only together with it. Raises RequestError.
    """
    texts = [text for text in fields.optional_texts(name) if text is not None]
    if len(texts) < fields.num_rows:
        together = " and ".join((name, *partners))
        wanted = f"send {together} together" if partners else "a text is required"
        raise RequestError(f"{name}: missing, {wanted}")
    return texts


def required_texts(fields: RequestFields, name: str, partners: Sequence[str] = ()) -> list[str]:
    """Like ``given_texts``, but also raises RequestError for an empty text."""
    return each_row(partial(filled, name), given_texts(fields, name, partners))


def filled(name: str, text: str) -> str:
    """Raises RequestError for white space alone, of which a model makes numbers without a
    meaning.
    """
    if not text or text.isspace():
        raise RequestError(
            f"{name}: got an empty text, allowed: a text that is not only white space"
        )
    return text


def integer_in(lowest: int, highest: int | None = None) -> Callable[[str, Any], int]:
    allowed = f"{lowest} and more" if highest is None else f"{lowest} to {highest}"

    def convert(name: str, value: Any) -> int:
        found = integer(name, value)
        if found < lowest or (highest is not None and found > highest):
            raise RequestError(f"{name}: got {shown(found)}, allowed: {allowed}")
        return found

    return convert


def one_of(*words: str) -> Callable[[str, Any], str]:
    """Converts one of these words, in lower case or upper."""

    def convert(name: str, value: Any) -> str:
        found = text(name, value).lower()
        if found not in words:
            raise RequestError(f"{name}: got another text, allowed: {', '.join(words)}")
        return found

    return convert


def softmax(logits: Array, axis: int = -1) -> Array:
    exponentials = np.exp(logits - logits.max(axis=axis, keepdims=True))
    shares: Array = exponentials / exponentials.sum(axis=axis, keepdims=True)
    return shares


def stack_rows(rows: Sequence[Array], *, batched: bool, length: int = 0) -> Array:
    """(rows, longest row, ...) where ``batched``, at least ``length`` long, in which shorter rows
    end with zeros, or with empty texts; else the only row unchanged.
    """
    if not batched:
        (row,) = rows
        return row
    kind = rows[0].dtype
    shape = len(rows), max(length, *map(len, rows)), *rows[0].shape[1:]
    found = np.full(shape, b"" if kind.hasobject else 0, kind)
    for place, row in zip(found, rows, strict=True):
        place[: len(row)] = row
    return found
