"""What a chat template does not take, as something that it does: tools in words, in the form that
Hermes made known, and calls and outputs as texts of the assistant's and the user's; arguments of
calls that are no JSON; system messages within the chat.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from hf_runtime.errors import RequestError
from hf_runtime.request.json_text import read_object

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
    found: list[Message] = []
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
            content = _joined(found.pop()["content"], message.get("content"))
            message = {"role": "user", "content": content}
        found.append(message)
    return found


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
    found: list[Message] = []
    is_open = False  # the last is a user's that was made of a system message
    for message in messages:
        content, role = message.get("content"), message["role"]
        if found and role in SYSTEM:
            is_open = found[-1]["role"] == "assistant"
            if found[-1]["role"] not in SYSTEM:
                content = _joined("<system>", content, "</system>")
            before = {"role": "user"} if is_open else found.pop()
            found.append({**before, "content": _joined(before.get("content"), content)})
        elif is_open and role == "user":
            found.append({**message, "content": _joined(found.pop()["content"], content)})
            is_open = False
        else:
            found.append(message)
            is_open = False
    return found


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
