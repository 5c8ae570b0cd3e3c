"""A chat's ``functions`` and ``function_call``, which OpenAI had before tools, as tools."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hf_triton.ports.openai.schema import json_body
from hf_triton.ports.openai.schema.errors import bad_field
from hf_triton.ports.openai.schema.json_body import Json
from hf_triton.ports.openai.schema.names import Placed

FIELDS = {"functions": json_body.objects, "function_call": json_body.text_or_object}
# What errors call the parts of tools.
NAMES = (
    (r"^(functions\[\d+\])\.function\b", r"\1"),
    (r"^tools\b", "functions"),
    (r"^tool_choice\b", "function_call"),
)


def are_in(body: Mapping[str, Any]) -> bool:
    """Whether a chat has any, or tells of earlier ones in its messages."""
    return any(name in body for name in FIELDS) or any(map(_is_of, body.get("messages", ())))


def as_tools(body: Mapping[str, Any]) -> Json:
    """The same chat with tools. Raises ApiError, 400."""
    found = {name: value for name, value in body.items() if name not in FIELDS}
    given = [name for name in FIELDS if name in body]
    if given and ("tools" in found or "tool_choice" in found):
        raise bad_field(given[0], "it beside tools", "one of them")
    found["messages"] = list(_messages(body.get("messages", ())))
    if "functions" in body:
        functions = enumerate(body["functions"])
        tools = [
            Placed(f"functions[{n}]", {"type": "function", "function": one}) for n, one in functions
        ]
        found |= {"tools": tools, "parallel_tool_calls": False}
    if "function_call" in body:
        found["tool_choice"] = _choice(body["function_call"])
    return found


def _choice(call: str | Json) -> str | Json:
    if isinstance(call, dict):
        return {"type": "function", "function": call}
    if call not in ("none", "auto"):
        raise bad_field("function_call", "another text", 'none, auto or {"name": ...}')
    return call


def _is_of(message: Mapping[str, Any]) -> bool:
    return message.get("role") == "function" or message.get("function_call") is not None


def _messages(messages: Any) -> Iterator[Json]:
    """Each call has an id, which the output after it refers to: nine digits, for Mistral's chat
    templates take no other.
    """
    call_id = ""
    for number, message in enumerate(messages):
        if not _is_of(message):
            yield message
        elif message.get("role") == "function":
            yield {**message, "role": "tool", "tool_call_id": call_id}
        else:
            call_id = f"{number:09}"
            own = {name: value for name, value in message.items() if name != "function_call"}
            call = {"id": call_id, "type": "function", "function": message["function_call"]}
            yield {**own, "tool_calls": [call]}
