"""Which of a schema's expressions hold one text together, and whether they can be followed.

llguidance follows them in every combination of their ways at once, in one step that none of its
limits ends: from about fifteen of them on, that step takes hours and all memory, when a grammar is
made or, later, in the midst of an output. So they are counted before. Knows no grammar library.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote

from hf_runtime.errors import RequestError
from hf_runtime.request.json_text import short

MAX_WAYS = 2**16  # of one text: 16 expressions of 2 ways each, or 5 of 9; it takes 0.1 s
MAX_NAME_PATTERNS = 100  # each is compared with each: 1 s for so many, minutes for 600
MAX_WORK = 20_000_000  # of looking at places and what holds them: about two seconds

_ANY_NAME, _ITEM = "*", "[]"
_FORMAT_WAYS = 8
_COUNTED = re.compile(r"\{\d*,?\d*\}")
_CLASS = re.compile(r"\\[pP]\{[^}]*\}|\\[pPwWdDsS]|\[\^?\]?(?:\\.|[^\]\\])*\]|\\(.)|\.|(\|)", re.S)


class Held(NamedTuple):
    """What holds a value: all ``parts`` (schemas without what they combine, by id), and of each of
    ``choices`` one.
    """

    parts: frozenset[int] = frozenset()
    choices: frozenset[frozenset[Held]] = frozenset()

    def __or__(self, other: Held) -> Held:
        return Held(self.parts | other.parts, self.choices | other.choices)


Below = Mapping[str, Held]  # by the name of a member, _ANY_NAME for others, _ITEM for items


def check_followed(schema: str) -> None:
    """Raises RequestError for a schema with texts that too many expressions hold together."""
    schemas = _Schemas(json.loads(schema))
    num_patterns = schemas.num_name_patterns
    if num_patterns > MAX_NAME_PATTERNS:
        raise RequestError(
            f"json_schema: got {num_patterns} patternProperties, allowed: at most "
            f"{MAX_NAME_PATTERNS}"
        )
    try:
        too_many = _first_beyond(schemas)
    except RecursionError:
        raise RequestError("json_schema: nested too deeply, allowed: a simpler one") from None
    if too_many is not None:
        place = "" if too_many in ("", _ANY_NAME, _ITEM) else f" of {short(too_many)}"
        raise RequestError(
            f"json_schema: too many patterns hold one text{place} together, allowed: fewer or "
            "simpler ones"
        )


def ways_of_pattern(pattern: str) -> int:
    """About how many of its parts may take the same next character: its classes and its
    alternatives, one for all plain characters, and one for what stands around it.
    """
    found = [match for match in _CLASS.finditer(_COUNTED.sub("", pattern)) if not match[1]]
    num_alternatives = sum(match[2] is not None for match in found)
    classes = {match[0] for match in found if match[2] is None}
    is_whole = pattern.startswith("^") and pattern.endswith("$")
    return 1 + len(classes) + num_alternatives + (not is_whole)


def _first_beyond(schemas: _Schemas) -> str | None:
    """The name of the first place where too much holds a text."""
    top = schemas.held(schemas.root)
    seen, left = {top}, [("", top)]
    while left:
        name, held = left.pop()
        if schemas.ways(held) > MAX_WAYS:
            return name
        new = {below: name for name, below in schemas.below(held).items() if below not in seen}
        seen.update(new)
        left.extend((name, below) for below, name in new.items())
    return None


class _Schemas:
    """The schemas within ``root``, by their ids."""

    def __init__(self, root: Any) -> None:
        self.root = root
        self._by_id = {id(schema): schema for schema in _objects(root)}
        self._held: dict[int, Held] = {}
        self._work = 0

    @property
    def num_name_patterns(self) -> int:
        """How many there are in all."""
        return sum(len(_named(one.get("patternProperties"))) for one in self._by_id.values())

    def held(self, schema: Any) -> Held:
        """What holds a value that fits ``schema``."""
        if not isinstance(schema, dict):
            return Held()
        if id(schema) not in self._held:
            self._held[id(schema)] = Held()  # for one that holds itself
            self._held[id(schema)] = self._combined(schema)
        return self._held[id(schema)]

    def _combined(self, schema: Mapping[str, Any]) -> Held:
        held = Held(frozenset([id(schema)]))
        for one in _listed(schema.get("allOf")):
            held |= self.held(one)
        if isinstance(reference := schema.get("$ref"), str):
            held |= self.held(_referred(self.root, reference))
        for key in ("anyOf", "oneOf"):
            held |= _one_of(map(self.held, _listed(schema.get(key))))
        return held

    def ways(self, held: Held) -> int:
        """How many ways there are at most to follow a text that is held so."""
        own = math.prod(_ways(self._by_id[part]) for part in held.parts)
        return own * math.prod(max(map(self.ways, choice)) for choice in held.choices)

    def below(self, held: Held) -> Below:
        """What holds the members and items of a value."""
        each = [self._own_below(self._by_id[part]) for part in held.parts]
        each += [self._joined(map(self.below, choice), _one_of) for choice in held.choices]
        return self._joined(each, _all_of)

    def _joined(self, places: Iterable[Below], join: Callable[[Iterable[Held]], Held]) -> Below:
        each = list(places)
        names = {name for below in each for name in below}
        joined = {name: join(_at(below, name) for below in each) for name in names}
        self._work += len(each) * sum(1 + len(held.parts) for held in joined.values())
        if self._work > MAX_WORK:
            raise RequestError("json_schema: too intricate, allowed: a simpler one")
        return joined

    def _own_below(self, schema: Mapping[str, Any]) -> Below:
        names = [one for _, one in _named(schema.get("patternProperties"))]
        names.append(schema.get("additionalProperties"))
        items = [schema.get("items"), schema.get("additionalItems")]
        items += [*_listed(schema.get("items")), *_listed(schema.get("prefixItems"))]
        below = {name: self.held(one) for name, one in _named(schema.get("properties"))}
        below[_ANY_NAME] = _one_of(map(self.held, names))
        below[_ITEM] = _one_of(map(self.held, items))
        return {name: held for name, held in below.items() if held != Held()}


def _ways(schema: Mapping[str, Any]) -> int:
    pattern = schema.get("pattern")
    ways = ways_of_pattern(pattern) if isinstance(pattern, str) else 1
    return ways * (_FORMAT_WAYS if "format" in schema else 1)


def _one_of(alternatives: Iterable[Held]) -> Held:
    choice = frozenset(alternatives) - {Held()}
    if len(choice) > 1:
        return Held(choices=frozenset([choice]))
    return next(iter(choice), Held())


def _all_of(held: Iterable[Held]) -> Held:
    together = Held()
    for one in held:
        together |= one
    return together


def _at(below: Below, name: str) -> Held:
    other = Held() if name == _ITEM else below.get(_ANY_NAME, Held())
    return below.get(name, other)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _named(value: Any) -> list[tuple[str, Any]]:
    return list(value.items()) if isinstance(value, dict) else []


def _objects(root: Any) -> Iterable[dict[str, Any]]:
    left = [root]
    while left:
        value = left.pop()
        if isinstance(value, dict):
            yield value
        left.extend(value.values() if isinstance(value, dict) else _listed(value))


def _referred(root: Any, reference: str) -> Any:
    """What a JSON pointer within the schema leads to (RFC 6901); None for any other."""
    found = root
    for part in reference.removeprefix("#").split("/")[1:]:
        name = unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and name.isdecimal() and int(name) < len(found):
            found = found[int(name)]
        else:
            found = found.get(name) if isinstance(found, dict) else None
    return found if reference.startswith("#") else None
