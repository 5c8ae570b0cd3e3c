"""Refuses JSON schemas with numbers that llguidance would round.

It computes with 64-bit floats: of ``{"const": 1234567890123456789}`` it would write
1234567890123456768. Knows no grammar library.
https://github.com/guidance-ai/llguidance/blob/main/parser/src/json/numeric.rs
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from hf_triton.runtime.errors import RequestError

from .schema_complexity import objects_in

_VALUES = ("const", "enum")
_INCLUSIVE = ("minimum", "maximum")
_BOUNDS = (*_INCLUSIVE, "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_ALL_EXACT = 2**53  # below, floats hold every whole number, and the ones beside it
_INT64 = 2**63  # below, whole floats are written with all their digits
_LONGEST = 40  # digits that an error shows
_JSON_IN_LARK = re.compile(r"%json\s*(?=\{)")


def check_numbers(schema: str) -> None:
    """Raises RequestError for a schema with a number that outputs could not be held to exactly."""
    _check(json.loads(schema), "json_schema")


def check_numbers_of_grammar(lark: str) -> None:
    """Raises RequestError for such a number in a schema within a grammar."""
    for found in _JSON_IN_LARK.finditer(lark):
        try:
            schema, _ = json.JSONDecoder().raw_decode(lark, found.end())
        except (ValueError, RecursionError):
            continue  # llguidance says what is wrong with it
        _check(schema, "grammar")


def _check(schema: Any, option: str) -> None:
    for one in objects_in(schema):
        for key in one.keys() & {*_VALUES, *_BOUNDS}:
            number = next((n for n in _numbers(one[key]) if not _is_exact(one, key, n)), None)
            if number is not None:
                text = str(number)
                shown = text if len(text) <= _LONGEST else f"a number of {len(text)} digits"
                raise RequestError(
                    f"{option}: {key}: got {shown}, allowed: numbers below {_ALL_EXACT}, beyond "
                    "which they would be rounded; or a text in its place"
                )


def _is_exact(schema: dict[str, Any], key: str, number: float) -> bool:
    """Whether an output is held to this number and to no other."""
    if abs(number) < _ALL_EXACT:
        return True
    kinds = schema.get("type")
    kinds = kinds if isinstance(kinds, list) else [kinds]
    is_whole = "integer" in kinds and "number" not in kinds
    if key == "maximum" and is_whole and number >= _INT64 - 1:
        return True  # whole numbers are written up to there
    may_be_large = key in _VALUES or (key in _INCLUSIVE and is_whole)
    return may_be_large and abs(number) < _INT64 and float(number) == number


def _numbers(value: Any) -> Iterator[float]:
    """All numbers within a JSON value."""
    left = [value]
    while left:
        one = left.pop()
        if isinstance(one, list | dict):
            left.extend(one.values() if isinstance(one, dict) else one)
        elif isinstance(one, int | float) and not isinstance(one, bool):
            yield one
