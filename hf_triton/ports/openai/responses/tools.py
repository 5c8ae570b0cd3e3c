"""Tools of ``/v1/responses`` as functions of chat, and what a call of each is told as.

The functions of a namespace are offered beside the others. Tools that OpenAI runs itself are left
out: nobody runs them here.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hf_triton.ports.openai.schema.body import Json, JsonList, convert, kind_of, short
from hf_triton.ports.openai.schema.errors import ApiError, Placed, bad_field
from hf_triton.ports.openai.schema.tools import ToolChoice

# Each has releases, with a date behind the name.
_HOSTED = re.compile(
    "(web_search|file_search|code_interpreter|image_generation|mcp|computer|local_shell|shell"
    "|apply_patch|tool_search|programmatic_tool_calling)(_(use_)?preview)?(_[0-9_]+)?"
)


@dataclass(frozen=True)
class Tool:
    """One of the caller's own, sent at ``place``; a chat calls it ``name``."""

    place: str
    name: str
    namespace: str
    sent: Json

    @property
    def head(self) -> Json:
        inner = {"namespace": self.namespace} if self.namespace else {}
        return {"type": "function_call", "name": self.sent["name"], **inner}

    def function(self) -> Json:
        names = ("description", "parameters", "strict")
        known = {name: self.sent[name] for name in names if self.sent.get(name) is not None}
        return Placed(self.place, {"type": "function", "function": {"name": self.name, **known}})


@dataclass(frozen=True)
class ResponseTools:
    functions: Sequence[Json] = ()  # chat's
    own: Mapping[str, Tool] = field(default_factory=dict)  # by the names of chat's functions
    # Chat's names by namespace and own name.
    names: Mapping[tuple[str, Any], str] = field(default_factory=dict)
    told: Sequence[Json] = ()  # those that a response repeats
    hosted: Sequence[str] = ()  # the kinds of those left out

    def name_of(self, namespace: Any, name: Any) -> Any:
        """The name in a chat of the tool that a call or a choice names."""
        space = namespace or ""
        texts = isinstance(space, str) and isinstance(name, str)
        return self.names.get((space, name), name) if texts else name

    def choice(self, choice: str | Json | None) -> ToolChoice | None:
        """Chat's form of a ``tool_choice``. Raises ApiError, 400, where it forces a hosted tool."""
        kind = choice.get("type") if isinstance(choice, dict) else choice
        if kind == "required" and self.hosted and not self.own:
            raise _hosted(*self.hosted)
        if isinstance(choice, dict) and _is_hosted(kind):
            raise _hosted(str(kind))
        if isinstance(choice, dict) and kind == "allowed_tools":
            raise bad_field("tool_choice", "allowed_tools", "another choice; send only these tools")
        if isinstance(choice, dict) and kind == "function":
            name = self.name_of(choice.get("namespace"), choice.get("name"))
            choice = {"type": "function", "function": {"name": name}}
        found: ToolChoice | None = convert(ToolChoice | None, choice, "tool_choice")
        return found


def read_tools(given: Sequence[Json]) -> ResponseTools:
    listed = [one for n, tool in enumerate(given) for one in _flat(f"tools[{n}]", tool)]
    counts = Counter(tool["name"] for _, _, tool in listed)
    own = [
        Tool(
            place,
            f"{space}__{tool['name']}" if space and counts[tool["name"]] > 1 else tool["name"],
            *(space, tool),
        )
        for place, space, tool in listed
    ]
    return ResponseTools(
        [tool.function() for tool in own],
        {tool.name: tool for tool in own},
        {(tool.namespace, tool.sent["name"]): tool.name for tool in own},
        [tool for tool in given if not _is_hosted(tool.get("type"))],
        [tool["type"] for tool in given if _is_hosted(tool.get("type"))],
    )


def _flat(where: str, tool: Json) -> list[tuple[str, str, Json]]:
    """A tool, or those of a namespace, each with its place and its namespace."""
    kind = tool.get("type")
    if kind == "namespace":
        space = convert(str, tool.get("name"), f"{where}.name")
        inner = convert(JsonList, tool.get("tools"), f"{where}.tools")
        nested = [_flat(f"{where}.tools[{n}]", one) for n, one in enumerate(inner)]
        return [(place, space, one) for found in nested for place, _, one in found]
    if _is_hosted(kind):
        return []
    if kind != "function":
        got = short(kind) if isinstance(kind, str) else kind_of(kind)
        allowed = "function (for a custom tool one that takes a text), namespace or a hosted tool's"
        raise bad_field(f"{where}.type", got, allowed)
    convert(str, tool.get("name"), f"{where}.name")
    return [(where, "", tool)]


def _is_hosted(kind: Any) -> bool:
    return isinstance(kind, str) and _HOSTED.fullmatch(kind) is not None


def _hosted(*kinds: str) -> ApiError:
    got = ", ".join(sorted({*kinds}))
    allowed = "functions, which the client runs; hosted tools are not run here"
    return bad_field("tool_choice", f"a call of {got}", allowed)
