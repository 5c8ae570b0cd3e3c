"""Refuses JSON schemas that llguidance would not hold outputs to, and removes names from them that
it does not take. Knows no grammar library.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from hf_triton.runtime.errors import RequestError

# By these an ``$id`` may be an anchor, and in draft 4 ``id`` is one.
_DRAFTS = re.compile(
    r"http://json-schema\.org/draft-0[467]/schema#?"
    r"|https://json-schema\.org/draft/20(19-09|20-12)/schema#?"
)
# RFC 3986, appendix A; without addresses in brackets.
_URI = re.compile(
    r"(?:[a-z][a-z0-9+.-]*:|(?![^/?]*:))(?:[\w.~!$&'()*+,;=:@/?-]|%[0-9a-f]{2})+#?", re.A | re.I
)
_VALUES = ("const", "enum")
_NO_SCHEMAS = (*_VALUES, "default", "examples")
_BY_NAME = ("properties", "patternProperties", "dependentSchemas", "$defs", "definitions")
_INCLUSIVE = ("minimum", "maximum")
_BOUNDS = (*_INCLUSIVE, "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_ALL_EXACT = 2**53  # below, floats hold every whole number, and the ones beside it
_INT64 = 2**63  # below, whole floats are written with all their digits
_LONGEST = 40  # digits that an error shows
_JSON_IN_LARK = re.compile(r"%json\s*(?=\{)")


def without_names(schema: dict[str, Any]) -> None:
    """Removes unknown ``$schema`` and each ``$id`` that no ``$ref`` names and that is no URI, or
    all without any ``$ref``: clients write any text there, which llguidance refuses.
    """
    objects = [one for one in values_in(schema) if isinstance(one, dict)]
    references = {str(one["$ref"]) for one in objects if "$ref" in one}
    left: list[tuple[Any, bool]] = [(schema, False)]
    while left:
        value, is_by_name = left.pop()
        if isinstance(value, list):
            left += ((one, False) for one in value)
        elif isinstance(value, dict) and is_by_name:
            left += ((one, False) for one in value.values())
        elif isinstance(value, dict):
            if not _DRAFTS.fullmatch(str(value.get("$schema"))):
                value.pop("$schema", None)
            for name in ("$id", "id"):
                given = value.get(name)
                if not isinstance(given, str):
                    continue
                may_stay = given in references or (references and _URI.fullmatch(given))
                if not may_stay:
                    del value[name]
            below = ((name, one) for name, one in value.items() if name not in _NO_SCHEMAS)
            left += ((one, name in _BY_NAME) for name, one in below)


def check_numbers(schema: Any, option: str) -> None:
    """Raises RequestError for a number that outputs could not be held to exactly.

    llguidance computes with 64-bit floats:
    https://github.com/guidance-ai/llguidance/blob/main/parser/src/json/numeric.rs
    """
    for one in values_in(schema):
        for key in one.keys() & {*_VALUES, *_BOUNDS} if isinstance(one, dict) else ():
            for number in values_in(one[key]):
                is_number = isinstance(number, int | float) and not isinstance(number, bool)
                if not is_number or _is_exact(one, key, number):
                    continue
                text = str(number)
                shown = text if len(text) <= _LONGEST else f"a number of {len(text)} digits"
                raise RequestError(
                    f"{option}: {key}: got {shown}, allowed: numbers below {_ALL_EXACT}, beyond "
                    "which they would be rounded; or a text in its place"
                )


def check_numbers_of_grammar(lark: str) -> None:
    """Raises RequestError for such a number in a schema within a grammar."""
    for found in _JSON_IN_LARK.finditer(lark):
        try:
            schema, _ = json.JSONDecoder().raw_decode(lark, found.end())
        except (ValueError, RecursionError):
            continue  # llguidance says what is wrong with it
        check_numbers(schema, "grammar")


def values_in(root: Any) -> Iterator[Any]:
    left = [root]
    while left:
        value = left.pop()
        yield value
        if isinstance(value, dict | list):
            left.extend(value.values() if isinstance(value, dict) else value)


def _is_exact(schema: dict[str, Any], key: str, number: float) -> bool:
    if abs(number) < _ALL_EXACT:
        return True
    kinds = schema.get("type")
    kinds = kinds if isinstance(kinds, list) else [kinds]
    is_whole = "integer" in kinds and "number" not in kinds
    if key == "maximum" and is_whole and number >= _INT64 - 1:
        return True  # whole numbers are written up to there
    may_be_large = key in _VALUES or (key in _INCLUSIVE and is_whole)
    return may_be_large and abs(number) < _INT64 and float(number) == number
