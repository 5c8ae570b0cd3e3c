"""Chats in forms that more chat templates take: tools, calls and outputs as texts, in the form that
Hermes made known; arguments of calls as objects or texts; no system message within the chat.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from typing import Any

from hf_triton.runtime.errors import RequestError
from hf_triton.runtime.request.json_text import read_object

Message = dict[str, Any]
# Anthropic's key for arguments that a model wrote and that are no object.
_NO_OBJECT = "INVALID_JSON"
SYSTEM = ("system", "developer")

_TOOL_INSTRUCTIONS = """\
You can call these functions:
{tools}
To call one, answer with its name and arguments alone:
<tool_call>
{{"name": "...", "arguments": {{...}}}}
</tool_call>"""


def with_tools(
    messages: Sequence[Message], tools: list[Any], *, takes_system: bool
) -> list[Message]:
    """The messages, with the tools in the first: a system message, or else the user's."""
    listed = "\n".join(json.dumps(tool.get("function", tool), ensure_ascii=False) for tool in tools)
    told = _TOOL_INSTRUCTIONS.format(tools=listed)
    first = messages[0]
    if first["role"] in (SYSTEM if takes_system else ("user",)):
        return [{**first, "content": _joined(first["content"], told)}, *messages[1:]]
    role = "system" if takes_system else "user"
    return [{"role": role, "content": told}, *messages]


def with_calls_as_texts(messages: Sequence[Message]) -> list[Message]:
    """The messages, with calls and the outputs of tools as texts."""
    groups: list[list[Message]] = []
    answers_tools = False
    for message in messages:
        was_tool, answers_tools = answers_tools, message["role"] == "tool"
        if answers_tools:
            content = _joined("<tool_response>", message.get("content"), "</tool_response>")
            message = {"role": "user", "content": content}
        elif message.get("tool_calls"):
            calls = "\n".join(map(_call, message["tool_calls"]))
            message = {"role": "assistant", "content": _joined(message.get("content"), calls)}
        if was_tool and message["role"] == "user":
            groups[-1].append(message)
        else:
            groups.append([message])
    return [_merged(group) for group in groups]


def with_arguments(message: Message, *, objects: bool, texts: bool) -> Message:
    """A message with arguments of calls, which come as JSON texts, in the template's form."""
    found = []
    for call in message.get("tool_calls") or ():
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            given = function.get("arguments")
            text = given if isinstance(given, str) else json.dumps(given or {})
            text = text or "{}"
            value = None if texts else {_NO_OBJECT: text}
            with contextlib.suppress(RequestError):
                value = read_object("arguments", text)
            arguments = text if value is None or not objects else value
            call = {**call, "function": {**function, "arguments": arguments}}
        found.append(call)
    return {**message, "tool_calls": found} if found else message


def with_one_system(messages: Sequence[Message]) -> list[Message]:
    """The messages, with later system messages as part of the one before, or of a user's."""
    groups: list[list[Message]] = []
    is_open = False  # the last is a user's that was made of a system message
    for message in messages:
        role, before = message["role"], groups[-1][0]["role"] if groups else ""
        if role in SYSTEM and before and before not in SYSTEM:
            content = _joined("<system>", message.get("content"), "</system>")
            message = {"role": "user", "content": content}
            joins = before != "assistant"
            is_open = is_open or not joins
        else:
            joins = before in SYSTEM if role in SYSTEM else is_open and role == "user"
            is_open = False
        if joins:
            groups[-1].append(message)
        else:
            groups.append([message])
    return [_merged(group) for group in groups]


def _merged(group: Sequence[Message]) -> Message:
    if len(group) == 1:
        return group[0]
    return {**group[0], "content": _joined(*(message.get("content") for message in group))}


def _call(call: Any) -> str:
    function = call.get("function") if isinstance(call, dict) else None
    known = function if isinstance(function, dict) else {}
    told = {name: known.get(name) for name in ("name", "arguments")}
    return f"<tool_call>\n{json.dumps(told, ensure_ascii=False)}\n</tool_call>"


def _joined(*contents: Any) -> Any:
    """Contents line by line: a text, or a list of parts where one of them is such a list."""
    given = [content for content in contents if content]
    if all(isinstance(content, str) for content in given):
        return "\n".join(given)
    parts = ([{"type": "text", "text": one}] if isinstance(one, str) else one for one in given)
    return [part for content in parts for part in content]
