"""Refuses JSON schemas that llguidance would not hold outputs to, or only in hours, and removes
names that it does not take. Knows no grammar library.

llguidance follows all expressions that apply to one text in every combination of their branches, in
one step that none of its limits ends. From about fifteen expressions on that takes hours and all
memory, when the grammar is made or, later, within an output. So combinations are counted before.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import unquote

from hf_triton.runtime.errors import RequestError
from hf_triton.runtime.request.json_text import short

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

MAX_BRANCHES = 2**16  # of one text: 16 expressions of 2 branches each, or 5 of 9; it takes 0.1 s

_ANY_NAME, _ITEM = "*", "[]"
_FORMAT_BRANCHES = 8
_COUNTED = re.compile(r"\{\d*,?\d*\}")
_CLASS = re.compile(r"\\[pP]\{[^}]*\}|\\[pPwWdDsS]|\[\^?\]?(?:\\.|[^\]\\])*\]|\\(.)|\.|(\|)", re.S)

# What only other keys say makes no branches, neither here nor below.
_TELLING = {
    *("pattern", "format", "properties", "patternProperties", "additionalProperties"),
    *("items", "prefixItems", "additionalItems"),
}

Applied = frozenset[int]  # ids of schemas that apply to one value, each without those it combines
_NOTHING: frozenset[Applied] = frozenset([frozenset()])


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


def check_complexity(schema: str) -> None:
    """Raises RequestError for a schema in which too many expressions apply to one text."""
    schemas = _Schemas(json.loads(schema))
    left = [("", applied) for applied in schemas.of(schemas.root)]
    seen: set[Applied] = set()
    while left:
        name, applied = left.pop()
        if applied in seen:
            continue
        seen.add(applied)
        if schemas.num_branches(applied) > MAX_BRANCHES:
            place = "" if name in ("", _ANY_NAME, _ITEM) else f" of {short(name)}"
            raise RequestError(
                f"json_schema: too many patterns apply to one text{place}, allowed: fewer or "
                "simpler ones"
            )
        left += schemas.below(applied)


def branches_of_pattern(pattern: str) -> int:
    """About how many parts of a pattern may match the same character: its classes and alternatives,
    one for all plain characters, and one for the text around it where it is not anchored.
    """
    found = [match for match in _CLASS.finditer(_COUNTED.sub("", pattern)) if not match[1]]
    num_alternatives = sum(match[2] is not None for match in found)
    classes = {match[0] for match in found if match[2] is None}
    is_whole = pattern.startswith("^") and pattern.endswith("$")
    return 1 + len(classes) + num_alternatives + (not is_whole)


class _Schemas:
    """The schemas within ``root``, by their ids."""

    def __init__(self, root: Any) -> None:
        self.root = root
        self._by_id = {id(schema): schema for schema in values_in(root) if isinstance(schema, dict)}
        self._known: dict[int, frozenset[Applied]] = {}

    def of(self, schema: Any) -> frozenset[Applied]:
        """The sets of schemas of which one applies to a value of ``schema``."""
        if not isinstance(schema, dict):
            return _NOTHING
        if id(schema) not in self._known:
            self._known[id(schema)] = _NOTHING  # ends the recursion of one that refers to itself
            own = frozenset([id(schema)] if _TELLING & schema.keys() else [])
            choices = [frozenset([own]), *map(self.of, _part(schema, "allOf", list))]
            if isinstance(reference := schema.get("$ref"), str):
                choices.append(self.of(_resolved(self.root, reference)))
            choices += (self._one_of(_part(schema, key, list)) for key in ("anyOf", "oneOf"))
            self._known[id(schema)] = _all_of(choices)
        return self._known[id(schema)]

    def num_branches(self, applied: Applied) -> int:
        """The branches that llguidance has to follow in a text to which these schemas apply."""
        return math.prod(_num_branches(self._by_id[one]) for one in applied)

    def below(self, applied: Applied) -> Iterator[tuple[str, Applied]]:
        """Names of members, _ANY_NAME for others, _ITEM for items, and what applies to each."""
        each = [self._own_below(self._by_id[one]) for one in applied]
        for name in {name for own in each for name in own}:
            other = "" if name == _ITEM else _ANY_NAME
            choices = (own.get(name) or own.get(other) or _NOTHING for own in each)
            yield from ((name, one) for one in _all_of(choices))

    def _own_below(self, schema: Mapping[str, Any]) -> dict[str, frozenset[Applied]]:
        others = [*_part(schema, "patternProperties", dict).values()]
        items = [schema.get("additionalItems"), *_part(schema, "prefixItems", list)]
        found = {name: self.of(one) for name, one in _part(schema, "properties", dict).items()}
        found[_ANY_NAME] = self._one_of([*others, schema.get("additionalProperties")])
        found[_ITEM] = self._one_of([*items, schema.get("items"), *_part(schema, "items", list)])
        return {name: choice for name, choice in found.items() if choice != _NOTHING}

    def _one_of(self, schemas: Iterable[Any]) -> frozenset[Applied]:
        """Without the alternative that says nothing, if there are others."""
        return frozenset().union(*map(self.of, schemas)) - _NOTHING or _NOTHING


def _all_of(choices: Iterable[frozenset[Applied]]) -> frozenset[Applied]:
    found = _NOTHING
    for choice in choices:
        found = frozenset(one | other for one in found for other in choice)
    return found


def _num_branches(schema: Mapping[str, Any]) -> int:
    pattern = schema.get("pattern")
    branches = branches_of_pattern(pattern) if isinstance(pattern, str) else 1
    return branches * (_FORMAT_BRANCHES if "format" in schema else 1)


def _part(schema: Mapping[str, Any], key: str, kind: type[Any]) -> Any:
    """A list or an object of a schema; an empty one for anything else."""
    found = schema.get(key)
    return found if isinstance(found, kind) else kind()


def _resolved(root: Any, reference: str) -> Any:
    """The target of a JSON pointer within the schema (RFC 6901), or None for any other."""
    found = root
    for part in reference.removeprefix("#").split("/")[1:]:
        name = unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and name.isdecimal() and int(name) < len(found):
            found = found[int(name)]
        else:
            found = found.get(name) if isinstance(found, dict) else None
    return found if reference.startswith("#") else None
