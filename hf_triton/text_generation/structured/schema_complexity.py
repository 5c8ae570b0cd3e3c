"""Refuses JSON schemas in which too many expressions apply to one text.

llguidance follows such expressions in every combination of their branches at once, in one step that
none of its limits ends. From about fifteen expressions on, that step takes hours and all memory,
when the grammar is made or, later, within an output. So the combinations are counted before. Knows
no grammar library.
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

from .json_schemas import values_in

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
    """About how many parts of a pattern may match the same next character: its character classes
    and alternatives, one for all plain characters, and one for the text around it where it is not
    anchored.
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
            choices = [frozenset([own]), *map(self.of, _list(schema, "allOf"))]
            if isinstance(reference := schema.get("$ref"), str):
                choices.append(self.of(_resolved(self.root, reference)))
            choices += (self._one_of(_list(schema, key)) for key in ("anyOf", "oneOf"))
            self._known[id(schema)] = _all_of(choices)
        return self._known[id(schema)]

    def num_branches(self, applied: Applied) -> int:
        """The branches that llguidance has to follow in a text to which these schemas apply."""
        return math.prod(_num_branches(self._by_id[one]) for one in applied)

    def below(self, applied: Applied) -> Iterator[tuple[str, Applied]]:
        """The names of members of a value, _ANY_NAME for others, _ITEM for items, and what applies
        to each.
        """
        each = [self._own_below(self._by_id[one]) for one in applied]
        for name in {name for own in each for name in own}:
            other = "" if name == _ITEM else _ANY_NAME
            choices = (own.get(name) or own.get(other) or _NOTHING for own in each)
            yield from ((name, one) for one in _all_of(choices))

    def _own_below(self, schema: Mapping[str, Any]) -> dict[str, frozenset[Applied]]:
        others = [*_members(schema, "patternProperties").values()]
        items = [schema.get("additionalItems"), *_list(schema, "prefixItems")]
        found = {name: self.of(one) for name, one in _members(schema, "properties").items()}
        found[_ANY_NAME] = self._one_of([*others, schema.get("additionalProperties")])
        found[_ITEM] = self._one_of([*items, schema.get("items"), *_list(schema, "items")])
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


def _list(schema: Mapping[str, Any], key: str) -> list[Any]:
    """A list of a schema; an empty one for anything else."""
    found = schema.get(key)
    return found if isinstance(found, list) else []


def _members(schema: Mapping[str, Any], key: str) -> dict[str, Any]:
    """An object of a schema; an empty one for anything else."""
    found = schema.get(key)
    return found if isinstance(found, dict) else {}


def _resolved(root: Any, reference: str) -> Any:
    """What a JSON pointer within the schema leads to (RFC 6901); None for any other."""
    found = root
    for part in reference.removeprefix("#").split("/")[1:]:
        name = unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and name.isdecimal() and int(name) < len(found):
            found = found[int(name)]
        else:
            found = found.get(name) if isinstance(found, dict) else None
    return found if reference.startswith("#") else None
