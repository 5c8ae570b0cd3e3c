"""Tools of a chat whose template takes none: told of in words, in the form that Hermes made known,
and calls and outputs as texts of the assistant's and the user's.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

Message = dict[str, Any]

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
    if first["role"] in (("system", "developer") if takes_system else ("user",)):
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
