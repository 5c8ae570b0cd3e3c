"""The fields that a path's requests may have: declared once, by which requests are checked and of
which the served schema is made.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hf_triton.ports.openai.schema.errors import ApiError
from hf_triton.ports.openai.schema.json_body import (
    Check,
    Json,
    ignored,
    json_object,
    schema_of,
    short,
    takes,
)

_LOG = logging.getLogger(__name__)
_MOST = 20  # names in a line of the log
_LIKE, _VERY_LIKE = 0.6, 0.8  # difflib's own, and of what is taken for misspelt


@dataclass(frozen=True)
class Body:
    """``fields`` has a check for each name; those that are not ``required`` may be null. Unless it
    ``is_strict``, unknown names are left out, as vLLM and llama.cpp do it, but for those that look
    like misspelt ones.
    """

    fields: Mapping[str, Check]
    required: Sequence[str] = ("model",)
    is_strict: bool = True

    def check(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The fields that are given, as their checks read them. Raises ApiError, 400, for one that
        is unknown or not what it must be.
        """
        found, left_out = {}, []
        for name, value in body.items():
            check = self.fields.get(name)
            if check is None:
                self._check_unknown(name)
            if check in (None, ignored):
                left_out.append(short(name))
            elif value is not None:
                found[name] = check(name, value)
        if left_out:
            _LOG.debug("%d fields were left out: %s", len(left_out), ", ".join(left_out[:_MOST]))
        return found

    def _check_unknown(self, name: str) -> None:
        cutoff = _LIKE if self.is_strict else _VERY_LIKE
        nearest = difflib.get_close_matches(short(name), sorted(self.fields), 1, cutoff)
        if self.is_strict or nearest:
            hint = f", did you mean {nearest[0]}?" if nearest else ""
            text = f"{short(name)}: unknown or unsupported field{hint}"
            raise ApiError(400, text, short(name))

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
            "additionalProperties": not self.is_strict,
        }


@dataclass(frozen=True)
class Either:
    """Bodies of which a request has one."""

    bodies: Sequence[Body]

    def schema(self) -> Json:
        """The JSON schema of them."""
        return {"anyOf": [one.schema() for one in self.bodies]}


def object_of(body: Body) -> Check:
    """A check of a field that is an object with the fields of ``body``."""

    @takes(**body.schema())
    def check(name: str, value: Any) -> dict[str, Any]:
        given = json_object(name, value)
        try:
            return body.check(given)
        except ApiError as error:
            message, param = (f"{name}.{one}" for one in (error.message, error.param))
            raise replace(error, message=message, param=param) from None

    return check


def _or_null(schema: Json) -> Json:
    if "enum" in schema:
        return {"enum": [*schema["enum"], None]}
    return {"anyOf": [schema, {"type": "null"}]} if schema else {}
