"""The parameters of a tool by its JSON schema, and values of them that a model has written as text.

A text stays a text where the schema takes texts and nothing else that it could be. ``null`` is null
where the schema takes null, beside texts too: that is what models mean by it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from operator import and_, or_
from typing import Any
from urllib.parse import unquote

from hf_triton.ports.openai.tool_calls.json_values import decode_whole

Types = frozenset[str]
ANY: Types = frozenset(("null", "boolean", "integer", "number", "string", "array", "object"))
_NUMBERS = frozenset(("number", "integer"))
_PYTHON = {"True": "true", "False": "false", "None": "null"}
_OF_CLASS = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array"}
_DEEPEST = 32  # what a schema says further within is not looked at
_INDEX = re.compile(r"\d{1,9}")
_JOINING = {"anyOf": or_, "oneOf": or_, "allOf": and_}


def types_of(tool: Mapping[str, Any]) -> dict[str, Types]:
    """The types of each parameter that a function names."""
    return _Schema(tool.get("parameters") or {}).of_properties()


def typed(text: str, types: Types) -> Any:
    """A parameter's value as its schema has it; what is not of its types as JSON, or as text."""
    found = text.strip()
    try:
        value = decode_whole(_PYTHON.get(found, found))
    except (ValueError, RecursionError):
        return text
    is_of_types = _type_of(value) in types - {"string"}
    return value if is_of_types or "string" not in types else text


def _type_of(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, float) and value.is_integer():
        return "integer"
    return _OF_CLASS.get(type(value), "object")


class _Schema:
    """A JSON schema, with what its references refer to."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._referred: dict[str, Types] = {}
        self._seen: set[str] = set()

    def of_properties(self) -> dict[str, Types]:
        """Those of a function's parameters, whose schema this is."""
        types: dict[str, Types] = {}
        for part in self._parts(self._root):
            for name, one in _mapping(part.get("properties")).items():
                types[name] = types.get(name, frozenset()) | self._types(one, 0)
        return types

    def _parts(self, schema: Any, depth: int = 0) -> Iterator[Mapping[str, Any]]:
        """A schema, and those that it is made of."""
        if not isinstance(schema, dict) or depth > _DEEPEST:
            return
        yield schema
        listed = [one for name in _JOINING for one in _sequence(schema.get(name))]
        to = schema.get("$ref")
        if isinstance(to, str) and to not in self._seen:
            self._seen.add(to)
            listed.append(self._referred_to(to))
        for one in listed:
            yield from self._parts(one, depth + 1)

    def _types(self, schema: Any, depth: int) -> Types:
        """The types of the values that a schema takes, as far as it says them."""
        if not isinstance(schema, dict) or depth > _DEEPEST:
            return ANY
        found = _named(schema)
        if isinstance(schema.get("$ref"), str):
            found &= self._types_of_reference(schema["$ref"], depth)
        for name, joined in _JOINING.items():
            listed = [self._types(one, depth + 1) for one in _sequence(schema.get(name))]
            if listed:
                found &= reduce(joined, listed)
        return found | {"null"} if schema.get("nullable") is True else found

    def _types_of_reference(self, to: str, depth: int) -> Types:
        if to not in self._referred:
            self._referred[to] = ANY  # where it refers to itself
            self._referred[to] = self._types(self._referred_to(to), depth + 1)
        return self._referred[to]

    def _referred_to(self, to: str) -> Any:
        """What a reference within the schema refers to; None for any other."""
        if not to.startswith("#"):
            return None
        found: Any = self._root
        for step in to[1:].split("/")[1:]:
            name = unquote(step).replace("~1", "/").replace("~0", "~")
            if isinstance(found, list):
                at = int(name) if _INDEX.fullmatch(name) else len(found)
                found = found[at] if at < len(found) else None
            else:
                found = _mapping(found).get(name)
        return found


def _named(schema: Mapping[str, Any]) -> Types:
    """The types that a schema itself names, or its values have."""
    found = ANY
    if "type" in schema:
        kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        found = ANY.intersection(kind for kind in kinds if isinstance(kind, str)) or ANY
        found = found | _NUMBERS if "number" in found else found
    if isinstance(schema.get("enum"), list):
        found &= {_type_of(value) for value in schema["enum"]}
    return found & {_type_of(schema["const"])} if "const" in schema else found


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _sequence(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else ()
