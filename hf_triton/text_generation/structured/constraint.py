"""The constraint on a row's output: a JSON schema, a regular expression, a grammar, or a list of
texts to choose from. Checks what can be checked without a grammar library.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hf_triton.runtime.errors import RequestError
from hf_triton.runtime.request.json_text import read_object
from hf_triton.runtime.request.tensors import kind_of

ANY_OBJECT = '{"type": "object"}'
MAX_CHOICES = 1000
_CHOICES = f"allowed: 1 to {MAX_CHOICES} different texts"
_KIB = 1024
# The sum of all choices.
_MOST_BYTES = {
    "json_schema": 256 * _KIB,
    "regex": 16 * _KIB,
    "choice": 64 * _KIB,
    "grammar": 32 * _KIB,
}

KINDS = tuple(_MOST_BYTES)


@dataclass(frozen=True)
class Reasoning:
    """The text that a model may write before its constraint: up to ``end``, from the first token on
    where it is ``inside`` already, else after ``begin``. ``tokens`` are texts in these two that are
    tokens of their own, and their ids.
    """

    begin: str
    end: str
    inside: bool
    tokens: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class Constraint:
    """``kind`` is the option that asks for it; ``texts`` are all choices, else one text."""

    kind: str
    texts: tuple[str, ...]
    reasoning: Reasoning | None = None

    @property
    def text(self) -> str:
        return self.texts[0]


def constraint_of(row: Mapping[str, Any], *, may_be_empty: bool) -> Constraint | None:
    """The one constraint of a row's options, if any; ``may_be_empty`` where empty texts stand for
    none, as in rows of a client's batch. Raises RequestError.
    """
    given = {name: _texts(name, row[name], may_be_empty) for name in KINDS if row[name]}
    if not may_be_empty and (empty := next((n for n in KINDS if row[n] == ""), None)):
        raise RequestError(f"{empty}: empty, a text is required")
    asked = [(name, texts) for name, texts in given.items() if texts]
    if not asked:
        return None
    if len(asked) > 1:
        names = " and ".join(name for name, _ in asked)
        raise RequestError(f"{names}: both given, send one of {', '.join(KINDS)}")
    constraint = Constraint(*asked[0])
    kind, num, most = constraint.kind, len(constraint.texts), _MOST_BYTES[constraint.kind]
    try:
        num_bytes = sum(len(text.encode()) for text in constraint.texts)
    except UnicodeEncodeError:
        raise RequestError(f"{kind}: not valid Unicode: half of a surrogate pair") from None
    if num_bytes > most:
        raise RequestError(f"{kind}: got {num_bytes} bytes, allowed: at most {most}")
    if num > MAX_CHOICES:
        raise RequestError(f"choice: got {num} texts, {_CHOICES}")
    if len(set(constraint.texts)) < num:
        raise RequestError(f"choice: got one text twice, {_CHOICES}")
    if kind == "json_schema":
        read_object(kind, constraint.text)
    return constraint


def schema_text(name: str, value: Any) -> str:
    """A JSON schema that came as a text or as an object; ``name`` is the field's."""
    if isinstance(value, str):
        return value
    if not isinstance(value, dict):
        raise RequestError(f"{name}: got {kind_of(value)}, allowed: a JSON schema, an object")
    return json.dumps(value)


def choice_texts(name: str, value: Any) -> tuple[str, ...]:
    """The choices of a list of texts, none of them empty."""
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise RequestError(f"{name}: got {kind_of(value)}, allowed: a list of texts")
    if not value or not all(value):
        raise RequestError(f"{name}: got an empty {'text' if value else 'list'}, {_CHOICES}")
    return tuple(value)


def _texts(name: str, value: Any, may_be_empty: bool) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    texts = tuple(filter(None, value))
    if not texts and not may_be_empty:
        raise RequestError(f"{name}: got only empty texts, {_CHOICES}")
    return texts
