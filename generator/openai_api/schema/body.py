"""The fields that a path's requests may have: declared once, by which requests are checked and of
which the served schema is made.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from generator.openai_api.schema.errors import ApiError
from generator.openai_api.schema.json_body import Check, Json, schema_of, short


@dataclass(frozen=True)
class Body:
    """``fields`` has a check for each name; those that are not ``required`` may be null."""

    fields: Mapping[str, Check]
    required: Sequence[str] = ("model",)

    def check(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The fields that are given, as their checks read them. Raises ApiError, 400, for one that
        is unknown or not what it must be.
        """
        found = {}
        for name, value in body.items():
            check = self.fields.get(name)
            if check is None:
                nearest = difflib.get_close_matches(short(name), sorted(self.fields), 1)
                hint = f", did you mean {nearest[0]}?" if nearest else ""
                text = f"{short(name)}: unknown or unsupported field{hint}"
                raise ApiError(400, text, short(name))
            if value is not None:
                found[name] = check(name, value)
        return found

    def schema(self) -> Json:
        """The JSON schema of a body."""
        properties = {
            name: schema_of(check) if name in self.required else _or_null(schema_of(check))
            for name, check in self.fields.items()
        }
        return {
            "type": "object",
            "properties": properties,
            "required": list(self.required),
            "additionalProperties": False,
        }


def _or_null(schema: Json) -> Json:
    if "enum" in schema:
        return {"enum": [*schema["enum"], None]}
    return {"anyOf": [schema, {"type": "null"}]} if schema else {}
