"""Texts, numbers and words of a request, each with what is allowed: texts as every task wants them,
there, UTF-8 and not empty; the others as converters for ``RequestFields.values``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from hf_triton.runtime.errors import RequestError
from hf_triton.runtime.request.tensors import RequestFields, each_row, integer, shown, text

LIST = "input_text"  # LiteLLM's name for a list of texts


def count_rows(fields: RequestFields, inputs: Iterable[str]) -> str:
    """Counts the rows of a request that may have these tensors. Returns the one that has its texts:
    ``text_input``, or LIST, whose every element is a row. Raises RequestError for both.
    """
    if not fields.count_list(LIST):
        fields.count_rows(*inputs)
        return "text_input"
    if fields.has_tensor("text_input"):
        raise RequestError(f"text_input and {LIST}: got both, send one of them")
    return LIST


def given_texts(fields: RequestFields, name: str, *partners: str) -> list[str]:
    """The text of each row of a tensor that a request must have; it may be empty.

    ``partners`` are the tensors that are of use only together with it.

    Raises:
        RequestError: missing, or no UTF-8.
    """
    texts = [text for text in fields.optional_texts(name) if text is not None]
    if len(texts) < fields.num_rows:
        raise RequestError(f"{name}: missing, {_wanted(name, partners)}")
    return texts


def required_texts(fields: RequestFields, name: str, *partners: str) -> list[str]:
    """As ``given_texts``, with a RequestError for an empty text, too."""
    return each_row(partial(filled, name), given_texts(fields, name, *partners))


def filled(name: str, text: str) -> str:
    """``text``; raises RequestError where there is nothing in it but white space, of which a model
    makes numbers without a meaning.
    """
    if not text or text.isspace():
        raise RequestError(
            f"{name}: got an empty text, allowed: a text that is not only white space"
        )
    return text


def _wanted(name: str, partners: tuple[str, ...]) -> str:
    together = " and ".join((name, *partners))
    return f"send {together} together" if partners else "a text is required"


def integer_in(lowest: int, highest: int | None = None) -> Callable[[str, Any], int]:
    """An integer from ``lowest`` to ``highest``."""
    allowed = f"{lowest} and more" if highest is None else f"{lowest} to {highest}"

    def convert(name: str, value: Any) -> int:
        found = integer(name, value)
        if found < lowest or (highest is not None and found > highest):
            raise RequestError(f"{name}: got {shown(found)}, allowed: {allowed}")
        return found

    return convert


def one_of(*words: str) -> Callable[[str, Any], str]:
    """One of these words, in lower case or upper."""

    def convert(name: str, value: Any) -> str:
        found = text(name, value).lower()
        if found not in words:
            raise RequestError(f"{name}: got another text, allowed: {', '.join(words)}")
        return found

    return convert
