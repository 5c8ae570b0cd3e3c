"""Messages and items of other APIs, as far as their parts become chat's in the same way."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hf_triton.ports.openai.schema import json_body
from hf_triton.ports.openai.schema.errors import ApiError, bad_field
from hf_triton.ports.openai.schema.json_body import Json, kind_of, short
from hf_triton.ports.openai.schema.names import Placed, top


@dataclass(frozen=True)
class Items:
    """``part`` makes a part of a chat's message of one at a place."""

    part: Callable[[str, Json], Json]

    def bad(self, where: str, got: str, allowed: str) -> ApiError:
        """Something that is not as it should be."""
        return bad_field(where, got, allowed, top(where))

    def bad_kind(self, where: str, kind: Any, allowed: str) -> ApiError:
        """A name that is none of those allowed."""
        return self.bad(where, short(kind) if isinstance(kind, str) else kind_of(kind), allowed)

    def text(self, where: str, item: Mapping[str, Any], name: str) -> str:
        """A field that is a text."""
        value = item.get(name)
        if not isinstance(value, str):
            got = "none" if value is None else kind_of(value)
            raise self.bad(f"{where}.{name}", got, "a text")
        return value

    def listed(self, where: str, content: Any) -> list[tuple[str, Json]]:
        """The parts of a content, each with its place; a text is one."""
        if isinstance(content, str):
            return [(where, {"type": "text", "text": content})]
        if not isinstance(content, list):
            got = "none" if content is None else kind_of(content)
            raise self.bad(where, got, "a text or a list of parts")
        places = [f"{where}[{number}]" for number in range(len(content))]
        return [
            (at, json_body.json_object(at, one)) for at, one in zip(places, content, strict=True)
        ]

    def content(self, listed: Sequence[tuple[str, Json]]) -> str | list[Json]:
        """A chat's content of parts: a text, or parts where some are none."""
        parts: list[Json] = [Placed(where, self.part(where, part)) for where, part in listed]
        if all(part["type"] == "text" for part in parts):
            return "\n".join(part["text"] for part in parts)
        return parts
