"""``response_format``: OpenAI's way to constrain an answer to a JSON schema.

The model checks the schema itself. Answers are always constrained, also with ``strict`` false.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from generator.openai_api.schema import json_body
from generator.openai_api.schema.errors import bad_field
from generator.openai_api.schema.json_body import kind_of

_NAME = "response_format"
ANY_OBJECT = '{"type": "object"}'


def constraint(body: Mapping[str, Any]) -> dict[str, str]:
    """The sampling parameters that hold an answer to its format; none without. Raises ApiError."""
    if body.get(_NAME) is None:
        return {}
    given = body[_NAME]
    kind = given.get("type")
    if kind not in ("text", "json_object", "json_schema"):
        got = "none" if kind is None else kind_of(kind)
        raise bad_field(f"{_NAME}.type", got, "text, json_object or json_schema")
    known = {"type", "json_schema"} if kind == "json_schema" else {"type"}
    _check_names(_NAME, given, known)
    if kind == "text":
        return {}
    return {"json_schema": ANY_OBJECT if kind == "json_object" else _schema(given)}


def _schema(given: Mapping[str, Any]) -> str:
    where = f"{_NAME}.json_schema"
    wrapped = json_body.json_object(where, given.get("json_schema"))
    _check_names(where, wrapped, {"name", "description", "schema", "strict"})
    if wrapped.get("strict") is not None:
        json_body.boolean(f"{where}.strict", wrapped["strict"])
    schema = json_body.json_object(f"{where}.schema", wrapped.get("schema"))
    return json.dumps(schema, ensure_ascii=False)


def _check_names(where: str, given: Mapping[str, Any], known: set[str]) -> None:
    for name in given:
        if name not in known:
            raise bad_field(where, "an unknown name in it", ", ".join(sorted(known)))
