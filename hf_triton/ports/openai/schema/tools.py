"""Tools of a chat: those that the model may call, and the JSON schema that its answer must match.

A call that is asked for (``tool_choice`` required, or one by name) is written under a JSON schema
made of the tools' own, whatever the model's way to write calls; where the model decides by itself,
it writes them as its chat template says. Both are read by hf_triton/ports/openai/tool_calls/.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from msgspec import Struct

from hf_triton.ports.openai.schema.body import Filled, Json, convert, refused
from hf_triton.ports.openai.schema.errors import bad_field

MAX_TOOLS = 128
# Keywords that give an object properties of other names, or of other schemas.
_MORE_PROPERTIES = (
    *("additionalProperties", "patternProperties", "unevaluatedProperties", "propertyNames"),
    *("allOf", "anyOf", "oneOf", "$ref", "if"),
)
_BY_ID = re.compile(r'"\$ref": "[^#]')


class Named(Struct):
    name: Filled


class _Function(Named):
    parameters: Json | None = None
    strict: bool | None = None


class _Tool(Struct):
    type: Literal["function"]
    function: _Function


class Chosen(Struct):
    function: Named
    type: Literal["function"] = "function"
    allowed_tools: refused("send those tools alone") = None  # type: ignore[valid-type]


ToolChoice = Literal["none", "auto", "required"] | Chosen


@dataclass(frozen=True)
class Tools:
    listed: Sequence[Json]
    names: frozenset[str]  # that may be called
    forced: str | None  # the one that must be called, "" for any; None where the model decides
    parallel: bool

    def constraint(self) -> dict[str, str]:
        """The sampling parameters that make the model call; none where it decides by itself."""
        if self.forced is None:
            return {}
        named = [(tool["function"]["name"], number) for number, tool in enumerate(self.listed)]
        by_name = {
            name: _arguments(self.listed[number], number)
            for name, number in named
            if self.forced in ("", name)
        }
        if self.forced:
            return {"json_schema": json.dumps(by_name[self.forced])}
        calls = {"anyOf": [_call(name, number, by_name[name]) for name, number in named]}
        schema = {"type": "array", "minItems": 1, "items": calls} if self.parallel else calls
        return {"json_schema": json.dumps(schema)}


def read_tools(
    listed: Sequence[Json], choice: ToolChoice | None, *, parallel: bool = True
) -> Tools | None:
    """The tools that a request's model is to know of; None without. Raises ApiError."""
    if len(listed) > MAX_TOOLS:
        raise bad_field("tools", f"a list of {len(listed)}", f"at most {MAX_TOOLS}")
    functions = (convert(_Tool, tool, f"tools[{n}]").function for n, tool in enumerate(listed))
    names = [function.name for function in functions]
    if len(set(names)) < len(names):
        raise bad_field("tools", "one function's name twice", "different names")
    forced = choice.function.name if isinstance(choice, Chosen) else None
    forced = "" if choice == "required" else forced
    if forced is not None and (not names or forced not in ("", *names)):
        got = "a function that is not in tools" if names else "a call without tools"
        raise bad_field("tool_choice", got, "one of tools")
    if not listed or choice == "none":
        return None
    return Tools(listed, frozenset(names), forced, parallel)


def _arguments(tool: Mapping[str, Any], number: int) -> dict[str, Any]:
    """The schema of a call's arguments, which are always an object."""
    schema: dict[str, Any] = tool["function"].get("parameters") or {"properties": {}}
    kind = schema.get("type", "object")
    if kind != "object" and not (isinstance(kind, list) and "object" in kind):
        raise bad_field(f"tools[{number}].function.parameters.type", "another type", "object")
    closed: dict[str, Any] = _closed({**schema, "type": "object"})
    return closed


def _closed(schema: Any) -> Any:
    """Closes objects that don't say otherwise: small models would add properties without end."""
    if not isinstance(schema, dict):
        return schema
    found = dict(schema)
    for name in ("properties", "$defs", "definitions"):
        if isinstance(schema.get(name), dict):
            found[name] = {key: _closed(one) for key, one in schema[name].items()}
    for name in ("anyOf", "oneOf", "prefixItems"):
        if isinstance(schema.get(name), list):
            found[name] = [_closed(one) for one in schema[name]]
    if "items" in schema:
        found["items"] = _closed(schema["items"])
    is_open = not any(name in schema for name in _MORE_PROPERTIES)
    return {**found, "additionalProperties": False} if "properties" in schema and is_open else found


def _call(name: str, number: int, parameters: Mapping[str, Any]) -> dict[str, Any]:
    # With an id of its own, a schema's references are to itself, wherever it stands, and whatever
    # other tools' schemas are called. A tool's name may hold what an id can't.
    refers_by_id = _BY_ID.search(json.dumps(parameters))
    base = f"http://tool/{number}/"
    own = {"$id": f"{base}arguments"}
    arguments = {**own, **parameters} if refers_by_id else {**parameters, **own}
    return {
        "$id": base,
        "type": "object",
        "properties": {"name": {"const": name}, "arguments": arguments},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }
