"""What a chat template does not take, as something that it does: tools in words, in the form that
Hermes made known, and calls and outputs as texts of the assistant's and the user's; arguments of
calls that are no JSON; system messages within the chat.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from hf_triton.runtime.errors import RequestError
from hf_triton.runtime.request.json_text import read_object

Message = dict[str, Any]
# Anthropic's name of what an object has where a model wrote something that is none.
_NO_OBJECT = "INVALID_JSON"
SYSTEM = ("system", "developer")

_TOLD = """\
You can call these functions:
{tools}
To call one, answer with its name and arguments alone:
<tool_call>
{{"name": "...", "arguments": {{...}}}}
</tool_call>"""


def told_of(messages: Sequence[Message], tools: list[Any], *, takes_system: bool) -> list[Message]:
    """The messages, the first of which tells of the tools: a system message, or where the template
    takes none, the user's.
    """
    listed = "\n".join(json.dumps(tool.get("function", tool), ensure_ascii=False) for tool in tools)
    told = _TOLD.format(tools=listed)
    first = messages[0]
    if first["role"] in (SYSTEM if takes_system else ("user",)):
        return [{**first, "content": _joined(first["content"], told)}, *messages[1:]]
    role = "system" if takes_system else "user"
    return [{"role": role, "content": told}, *messages]


def in_words(messages: Sequence[Message]) -> list[Message]:
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
    return [_one(group) for group in groups]


def with_arguments(calls: list[Any], *, objects: bool, texts: bool) -> list[Any]:
    """An assistant's calls, as clients send them back: there arguments are JSON texts, also those
    that were cut off. A template takes objects or texts or both; a text that is no object goes to
    it as it is, or within one.
    """
    found = []
    for call in calls:
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            given = function.get("arguments")
            text = given if isinstance(given, str) else json.dumps(given or {})
            value = _object_in(text := text or "{}")
            if value is None and not texts:
                value = {_NO_OBJECT: text}
            arguments = text if value is None or not objects else value
            call = {**call, "function": {**function, "arguments": arguments}}
        found.append(call)
    return found


def _object_in(text: str) -> Message | None:
    try:
        return read_object("arguments", text)
    except RequestError:
        return None


def within_others(messages: Sequence[Message]) -> list[Message]:
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
    return [_one(group) for group in groups]


def _one(group: Sequence[Message]) -> Message:
    """The first of some messages, with the contents of all."""
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
