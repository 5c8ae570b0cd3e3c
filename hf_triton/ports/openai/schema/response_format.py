"""``response_format``: OpenAI's way to constrain an answer, in the form of every server.

The model checks the schema itself. Answers are always constrained, also with ``strict`` false.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from hf_triton.ports.openai.schema import json_body
from hf_triton.ports.openai.schema.errors import bad_field
from hf_triton.ports.openai.schema.json_body import kind_of

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


def constraint(body: Mapping[str, Any]) -> dict[str, str]:
    """The sampling parameters that hold an answer to its format; none without. Raises ApiError."""
    if body.get(_NAME) is None:
        return {}
    given = body[_NAME]
    kind = given.get("type")
    if not isinstance(kind, str) or kind not in _KINDS:
        got = "none" if kind is None else kind_of(kind)
        raise bad_field(f"{_NAME}.type", got, f"one of {', '.join(_KINDS)}")
    names = _KINDS[kind]
    _check_names(_NAME, given, {"type", *names})
    found = [name for name in names if given.get(name) is not None]
    if len(found) > 1:
        raise bad_field(_NAME, " and ".join(found), "one of them")
    if kind == "text":
        return {}
    if kind == "json_object" and not found:
        return {"json_schema": ANY_OBJECT}
    where = f"{_NAME}.{found[0] if found else names[0]}"
    value = given.get(found[0]) if found else None
    if kind == "regex":
        return {"regex": json_body.text(where, value)}
    wraps = kind == "json_schema" and (not found or found[0] != "schema")
    return {"json_schema": _wrapped(where, value) if wraps else _schema(where, value)}


def place_of_schema(given: Mapping[str, Any]) -> str:
    """Where a format that was read has what it holds an answer to."""
    found = next((n for n in ("json_schema", "schema", "value") if given.get(n) is not None), "")
    wraps = isinstance(given.get(found), dict) and "schema" in given[found] and found != "schema"
    return ".".join(filter(None, (_NAME, found, "schema" if wraps else "")))


def _wrapped(where: str, value: Any) -> str:
    """OpenAI's object with a name and a schema; TGI's may be the schema itself."""
    wrapped = json_body.json_object(where, value)
    if where.endswith(".value") and "schema" not in wrapped:
        return _schema(where, wrapped)
    _check_names(where, wrapped, {"name", "description", "schema", "strict"})
    if wrapped.get("strict") is not None:
        json_body.boolean(f"{where}.strict", wrapped["strict"])
    return _schema(f"{where}.schema", wrapped.get("schema"))


def _schema(where: str, value: Any) -> str:
    return json.dumps(json_body.json_object(where, value), ensure_ascii=False)


def _check_names(where: str, given: Mapping[str, Any], known: set[str]) -> None:
    for name in given:
        if name not in known:
            raise bad_field(where, "an unknown name in it", ", ".join(sorted(known)))
