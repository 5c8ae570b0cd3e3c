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
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote

from hf_triton.runtime.errors import RequestError
from hf_triton.runtime.request.json_text import short

MAX_BRANCHES = 2**16  # of one text: 16 expressions of 2 branches each, or 5 of 9; it takes 0.1 s
MAX_NAME_PATTERNS = 100  # each is compared with each: 1 s for so many, minutes for 600
MAX_WORK = 20_000_000  # steps of walking the schema: about two seconds

_ANY_NAME, _ITEM = "*", "[]"
_FORMAT_BRANCHES = 8
_COUNTED = re.compile(r"\{\d*,?\d*\}")
_CLASS = re.compile(r"\\[pP]\{[^}]*\}|\\[pPwWdDsS]|\[\^?\]?(?:\\.|[^\]\\])*\]|\\(.)|\.|(\|)", re.S)


class Subschemas(NamedTuple):
    """The subschemas that apply to a value: all of ``required`` (ids of schemas, each without those
    that it combines), and one of each set in ``alternatives``.
    """

    required: frozenset[int] = frozenset()
    alternatives: frozenset[frozenset[Subschemas]] = frozenset()

    def __or__(self, other: Subschemas) -> Subschemas:
        return Subschemas(self.required | other.required, self.alternatives | other.alternatives)


Below = Mapping[str, Subschemas]  # by the name of a member, _ANY_NAME for others, _ITEM for items


def check_complexity(schema: str) -> None:
    """Raises RequestError for a schema in which too many expressions apply to one text."""
    schemas = _Schemas(json.loads(schema))
    num_patterns = schemas.num_name_patterns
    if num_patterns > MAX_NAME_PATTERNS:
        raise RequestError(
            f"json_schema: got {num_patterns} patternProperties, allowed: at most "
            f"{MAX_NAME_PATTERNS}"
        )
    try:
        too_many = _first_too_complex(schemas)
    except RecursionError:
        raise RequestError("json_schema: nested too deeply, allowed: a simpler one") from None
    if too_many is not None:
        place = "" if too_many in ("", _ANY_NAME, _ITEM) else f" of {short(too_many)}"
        raise RequestError(
            f"json_schema: too many patterns apply to one text{place}, allowed: fewer or simpler "
            "ones"
        )


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


def _first_too_complex(schemas: _Schemas) -> str | None:
    """The name of the first member or item that has too many branches; None where none has."""
    top = schemas.of_schema(schemas.root)
    seen, left = {top}, [("", top)]
    while left:
        name, subschemas = left.pop()
        if schemas.branches(subschemas) > MAX_BRANCHES:
            return name
        new = {
            below: name for name, below in schemas.below(subschemas).items() if below not in seen
        }
        seen.update(new)
        left.extend((name, below) for below, name in new.items())
    return None


class _Schemas:
    """The schemas within ``root``, by their ids."""

    def __init__(self, root: Any) -> None:
        self.root = root
        self._by_id = {id(schema): schema for schema in objects_in(root)}
        self._of_schema: dict[int, Subschemas] = {}
        self._work = 0

    @property
    def num_name_patterns(self) -> int:
        """How many patternProperties there are in all."""
        return sum(len(named(one.get("patternProperties"))) for one in self._by_id.values())

    def of_schema(self, schema: Any) -> Subschemas:
        """The subschemas that apply to a value of ``schema``."""
        if not isinstance(schema, dict):
            return Subschemas()
        if id(schema) not in self._of_schema:
            self._of_schema[id(schema)] = (
                Subschemas()
            )  # ends the recursion of one that refers to itself
            self._of_schema[id(schema)] = self._combined(schema)
        return self._of_schema[id(schema)]

    def _combined(self, schema: Mapping[str, Any]) -> Subschemas:
        subschemas = Subschemas(frozenset([id(schema)]))
        for one in listed(schema.get("allOf")):
            subschemas |= self.of_schema(one)
        if isinstance(reference := schema.get("$ref"), str):
            subschemas |= self.of_schema(_resolved(self.root, reference))
        for key in ("anyOf", "oneOf"):
            subschemas |= _one_of(map(self.of_schema, listed(schema.get(key))))
        return subschemas

    def branches(self, subschemas: Subschemas) -> int:
        """The most branches that llguidance has to follow in a text under these subschemas."""
        own = math.prod(_branches(self._by_id[one]) for one in subschemas.required)
        return own * math.prod(
            max(map(self.branches, choice)) for choice in subschemas.alternatives
        )

    def below(self, subschemas: Subschemas) -> Below:
        """The subschemas that apply to the members and items of a value."""
        each = [self._own_below(self._by_id[one]) for one in subschemas.required]
        each += [
            self._joined(map(self.below, choice), _one_of) for choice in subschemas.alternatives
        ]
        return self._joined(each, _all_of)

    def _joined(
        self, places: Iterable[Below], join: Callable[[Iterable[Subschemas]], Subschemas]
    ) -> Below:
        each = list(places)
        names = {name for below in each for name in below}
        joined = {name: join(_at(below, name) for below in each) for name in names}
        self._work += len(each) * sum(
            1 + len(subschemas.required) for subschemas in joined.values()
        )
        if self._work > MAX_WORK:
            raise RequestError("json_schema: too complex, allowed: a simpler one")
        return joined

    def _own_below(self, schema: Mapping[str, Any]) -> Below:
        names = [one for _, one in named(schema.get("patternProperties"))]
        names.append(schema.get("additionalProperties"))
        items = [schema.get("items"), schema.get("additionalItems")]
        items += [*listed(schema.get("items")), *listed(schema.get("prefixItems"))]
        below = {name: self.of_schema(one) for name, one in named(schema.get("properties"))}
        below[_ANY_NAME] = _one_of(map(self.of_schema, names))
        below[_ITEM] = _one_of(map(self.of_schema, items))
        return {
            name: subschemas for name, subschemas in below.items() if subschemas != Subschemas()
        }


def _branches(schema: Mapping[str, Any]) -> int:
    pattern = schema.get("pattern")
    branches = branches_of_pattern(pattern) if isinstance(pattern, str) else 1
    return branches * (_FORMAT_BRANCHES if "format" in schema else 1)


def _one_of(alternatives: Iterable[Subschemas]) -> Subschemas:
    choice = frozenset(alternatives) - {Subschemas()}
    if len(choice) > 1:
        return Subschemas(alternatives=frozenset([choice]))
    return next(iter(choice), Subschemas())


def _all_of(subschemas: Iterable[Subschemas]) -> Subschemas:
    combined = Subschemas()
    for one in subschemas:
        combined |= one
    return combined


def _at(below: Below, name: str) -> Subschemas:
    other = Subschemas() if name == _ITEM else below.get(_ANY_NAME, Subschemas())
    return below.get(name, other)


def listed(value: Any) -> list[Any]:
    """A list; an empty one for anything else."""
    return value if isinstance(value, list) else []


def named(value: Any) -> list[tuple[str, Any]]:
    """The members of an object; none for anything else."""
    return list(value.items()) if isinstance(value, dict) else []


def objects_in(root: Any) -> Iterable[dict[str, Any]]:
    """All objects within a JSON value."""
    left = [root]
    while left:
        value = left.pop()
        if isinstance(value, dict):
            yield value
        left.extend(value.values() if isinstance(value, dict) else listed(value))


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
