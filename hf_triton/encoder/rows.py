"""The rows of a request: reads their texts, numbers and words, each with what is allowed, and makes
arrays of their answers, with or without a batch dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from hf_triton.runtime.errors import RequestError
from hf_triton.runtime.request.json_text import written
from hf_triton.runtime.request.tensors import RequestFields, each_row, integer, shown, text

from .task import Array, Prepared
from .texts.encoding import Encoding

LIST = "input_text"  # LiteLLM's name for a list of texts


def count_rows(fields: RequestFields, inputs: Sequence[str]) -> str:
    """Counts the rows of a request that may have these inputs. Returns the one that has its texts:
    ``text_input``, or LIST, whose every element is a row. Raises RequestError for both, and for
    another parameter.
    """
    fields.check_parameters(inputs)
    if LIST not in inputs or not fields.count_list(LIST):
        fields.count_rows(*inputs)
        return "text_input"
    if fields.has_tensor("text_input"):
        raise RequestError(f"text_input and {LIST}: got both, send one of them")
    return LIST


def given_texts(fields: RequestFields, name: str, *partners: str) -> list[str]:
    """The text of each row of a tensor that a request must have; it may be empty. ``partners`` are
    the tensors that are of use only together with it. Raises RequestError.
    """
    texts = [text for text in fields.optional_texts(name) if text is not None]
    if len(texts) < fields.num_rows:
        together = " and ".join((name, *partners))
        wanted = f"send {together} together" if partners else "a text is required"
        raise RequestError(f"{name}: missing, {wanted}")
    return texts


def required_texts(fields: RequestFields, name: str, *partners: str) -> list[str]:
    """As ``given_texts``, with a RequestError for an empty text, too."""
    return each_row(partial(filled, name), given_texts(fields, name, *partners))


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


def stack_rows(rows: Sequence[Array], *, batched: bool) -> Array:
    """(rows, ...) where ``batched``; else the only row unchanged."""
    if batched:
        return np.stack(rows)
    (row,) = rows
    return row


def text_rows(rows: Sequence[Sequence[str]], *, batched: bool) -> Array:
    """Texts as bytes, (rows, longest row) where ``batched``; shorter rows end with empty texts."""
    longest = max(map(len, rows))
    filled = [[*row, *([""] * (longest - len(row)))] for row in rows]
    encoded = [np.array([text.encode() for text in row], dtype=np.object_) for row in filled]
    return stack_rows(encoded, batched=batched)


def number_rows(rows: Sequence[Array], *, batched: bool) -> Array:
    """Numbers as float32, (rows, longest row) where ``batched``; shorter rows end with zeros."""
    longest = max(map(len, rows))
    padded = [np.pad(row, (0, longest - len(row))).astype(np.float32) for row in rows]
    return stack_rows(padded, batched=batched)


def token_counts(encodings: Sequence[Encoding], *, batched: bool) -> dict[str, Array]:
    columns = {
        "num_input_tokens": [np.array([len(one)], dtype=np.uint32) for one in encodings],
        "truncated": [np.array([one.is_cut]) for one in encodings],
    }
    return {name: stack_rows(column, batched=batched) for name, column in columns.items()}


@dataclass(frozen=True)
class JsonRow:
    """One row of a request: its encodings, and a function that makes the answer from their results,
    in the order of ``encodings``.
    """

    encodings: Sequence[Encoding]
    answer: Callable[[list[Array]], object]


def json_request(rows: Sequence[JsonRow], *, batched: bool) -> Prepared:
    """A request whose ``output`` is a JSON text for each row: (rows, 1) where ``batched``, else
    (1,).
    """

    def answer(results: list[Array]) -> Mapping[str, Array]:
        left = iter(results)
        texts = [[written(row.answer([*islice(left, len(row.encodings))]))] for row in rows]
        return {"output": text_rows(texts, batched=batched)}

    return Prepared([encoding for row in rows for encoding in row.encodings], answer)
