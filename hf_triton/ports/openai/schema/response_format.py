"""``response_format``: OpenAI's way to constrain an answer, in the form of every server.

The model checks the schema itself. Answers are always constrained, also with ``strict`` false.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct

from hf_triton.ports.openai.schema.body import Json, convert, read
from hf_triton.ports.openai.schema.errors import bad_field

_NAME = "response_format"
# The types, and where each has what it holds an answer to: OpenAI's, ``value`` of TGI and
# huggingface_hub, ``schema`` of llama.cpp.
_KINDS: dict[str, tuple[str, ...]] = {
    "text": (),
    "json_object": ("schema", "value"),
    "json_schema": ("json_schema", "schema", "value"),
    "json": ("value", "schema"),
    "regex": ("value",),
}
ANY_OBJECT = '{"type": "object"}'


class _Format(Struct):
    type: Literal["text", "json_object", "json_schema", "json", "regex"]


class _NamedSchema(Struct, forbid_unknown_fields=True, kw_only=True):
    schema: Json
    name: Any = None
    description: Any = None
    strict: bool | None = None


def constraint(given: Mapping[str, Any] | None) -> dict[str, str]:
    """The sampling parameters that hold an answer to its format; none without. Raises ApiError."""
    if given is None:
        return {}
    kind = convert(_Format, given, _NAME).type
    names = _KINDS[kind]
    if not given.keys() <= {"type", *names}:
        raise bad_field(_NAME, "an unknown name in it", ", ".join(sorted(("type", *names))))
    found = [name for name in names if given.get(name) is not None]
    if len(found) > 1:
        raise bad_field(_NAME, " and ".join(found), "one of them")
    if kind == "text":
        return {}
    if kind == "json_object" and not found:
        return {"json_schema": ANY_OBJECT}
    [name] = found or names[:1]
    where, value = f"{_NAME}.{name}", given.get(name)
    if kind == "regex":
        return {"regex": convert(str, value, where)}
    schema: Json = convert(Json, value, where)
    # OpenAI's object with a name and a schema; TGI's may be the schema itself.
    if kind == "json_schema" and (name == "json_schema" or "schema" in schema) and name != "schema":
        schema = read(_NamedSchema, schema, where).schema
    return {"json_schema": json.dumps(schema, ensure_ascii=False)}


def place_of_schema(given: Mapping[str, Any]) -> str:
    """Where a format that was read has what it holds an answer to."""
    found = next((n for n in ("json_schema", "schema", "value") if given.get(n) is not None), "")
    wraps = isinstance(given.get(found), dict) and "schema" in given[found] and found != "schema"
    return ".".join(filter(None, (_NAME, found, "schema" if wraps else "")))
