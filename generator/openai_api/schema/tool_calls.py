"""Finds a model's calls of tools in the text that it writes, as it comes.

Models write calls as their chat templates show them: ``<tool_call>{...}</tool_call>`` (Hermes,
Qwen), ``[TOOL_CALLS][{...}]`` (Mistral) or the JSON alone (Llama 3, and every model that is held to
a schema), each with a name and its arguments or parameters. A text is a call only where it names a
tool that the request has; any other stays text, to the letter.
"""

from __future__ import annotations

import json
import re
import sys
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NoReturn

from generator.openai_api.schema.tools import Tools

Call = dict[str, Any]

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_BEGINNINGS = (_OPEN, "[TOOL_CALLS]", "<|python_tag|>")
# What stands between two calls.
_BETWEEN = re.compile(rf"(?:\s|[,;]|{_CLOSE})*")
# JSON that can't be a call, told by how it begins: its first name, or what a list holds.
_NO_CALL = re.compile(
    r'(?:\[\s*)?\{\s*(?:"(?!(?:name|arguments|parameters|type|id)")[^"]*"\s*:|[^\s"])|\[\s*[^\s{]'
)
# Of text that ends within a literal or an escape, JSON's decoder finds fault a little before.
_HALF = 8
_LARGEST = sys.float_info.max


def _number(text: str) -> float:
    """JSON has no infinity to write down again."""
    return max(-_LARGEST, min(float(text), _LARGEST))


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


_decode = json.JSONDecoder(parse_float=_number, parse_constant=_no_number).raw_decode


@dataclass
class Read:
    """What a piece of text brought: text that is none of a call, and calls, or parts of them, as
    OpenAI's streams have them.
    """

    text: str = ""
    calls: list[Call] = field(default_factory=list)


class NamedCall:
    """The answer is the arguments of the one call that the request named."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._begun = False

    def read(self, text: str, *, ends: bool) -> Read:  # noqa: ARG002, as FoundCalls
        """Takes the next piece of the answer, the last where it ``ends``."""
        if not self._begun:
            self._begun = True
            return Read(calls=[_call(0, self._name, text)])
        return Read(calls=[{"index": 0, "function": {"arguments": text}}] if text else [])

    def finish_reason(self, reason: str | None) -> str | None:
        """As OpenAI has it, a call that was asked for by name is no reason to stop."""
        return reason


class FoundCalls:
    """Calls among an answer's text. What may become one waits until that is known."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._waiting = ""
        self._num_calls = 0
        self._within_text = False  # where JSON alone is none of a call

    def read(self, text: str, *, ends: bool) -> Read:
        """Takes the next piece of the answer, the last where it ``ends``."""
        self._waiting += text
        read = Read()
        while self._waiting and self._take(read, ends=ends):
            pass
        return read

    def finish_reason(self, reason: str | None) -> str | None:
        """An answer that ends with calls ends for them."""
        return "tool_calls" if reason == "stop" and self._num_calls else reason

    def _take(self, read: Read, *, ends: bool) -> bool:
        """Takes what is certain from the front of what waits; False where nothing is."""
        if self._within_text:
            return self._take_text(read, ends=ends)
        if self._num_calls:
            self._waiting = self._waiting[self._between(ends=ends) :]
        begun = _after_beginning(self._waiting)
        json_text = self._waiting[begun:]
        if not ends and (not json_text or _may_begin(json_text)):
            return False
        if json_text[:1] not in ("{", "[") or _NO_CALL.match(json_text):
            self._within_text = True
            return not begun or self._take_as_text(begun, read)
        return self._take_json(begun, read, ends=ends)

    def _take_json(self, begin: int, read: Read, *, ends: bool) -> bool:
        try:
            value, end = _decode(self._waiting, begin)
        except json.JSONDecodeError as error:
            if not ends and _may_go_on(error, self._waiting):
                return False
            self._within_text = True
            return self._take_as_text(begin + 1, read)
        except (RecursionError, ValueError):  # too deep, NaN, an integer of too many digits
            self._within_text = True
            return self._take_as_text(len(self._waiting), read)
        found = [self._as_call(one) for one in (value if isinstance(value, list) else [value])]
        if not found or None in found:
            self._within_text = True
            return self._take_as_text(end, read)
        for name, arguments in filter(None, found):
            if self._tools.parallel or not self._num_calls:
                read.calls.append(_call(self._num_calls, name, arguments))
                self._num_calls += 1
        self._waiting = self._waiting[end:]
        return True

    def _take_text(self, read: Read, *, ends: bool) -> bool:
        """Text up to the next call, or to what may be its beginning."""
        found = self._waiting.find(_OPEN)
        if found >= 0:
            self._within_text = False
            return self._take_as_text(found, read) or True
        return self._take_as_text(len(self._waiting) if ends else _safe(self._waiting), read)

    def _take_as_text(self, end: int, read: Read) -> bool:
        read.text += self._waiting[:end]
        self._waiting = self._waiting[end:]
        return end > 0

    def _between(self, *, ends: bool) -> int:
        """Where what stands between two calls ends."""
        found = _BETWEEN.match(self._waiting)
        end = found.end() if found else 0
        rest = self._waiting[end:]
        return end + len(rest) if ends and rest and _CLOSE.startswith(rest) else end

    def _as_call(self, value: Any) -> tuple[str, str] | None:
        """A call's name and its arguments' JSON; None of what is no call of a tool."""
        name = value.get("name") if isinstance(value, dict) else None
        if not isinstance(name, str) or name not in self._tools.names:
            return None
        arguments: Any = value.get("arguments", value.get("parameters", {}))
        if not isinstance(arguments, dict):
            return None
        return name, _as_json(arguments)


def reader(tools: Tools) -> NamedCall | FoundCalls:
    """What reads the answer of one choice."""
    return NamedCall(tools.forced) if tools.forced else FoundCalls(tools)


def whole_calls(parts: Iterable[Call]) -> list[Call]:
    """The calls of a whole answer, put together from what a stream would have sent."""
    calls: dict[int, Call] = {}
    for part in parts:
        known = calls.get(part["index"])
        if known is None:
            function = dict(part["function"])
            calls[part["index"]] = {"id": part["id"], "type": "function", "function": function}
        else:
            known["function"]["arguments"] += part["function"]["arguments"]
    return list(calls.values())


def _call(index: int, name: str, arguments: str) -> Call:
    # Nine letters and digits: Mistral's chat templates take no other.
    call_id = uuid.uuid4().hex[:9]
    function = {"name": name, "arguments": arguments}
    return {"index": index, "id": call_id, "type": "function", "function": function}


def _as_json(arguments: Call) -> str:
    """Half of a surrogate pair, which is no Unicode, stays an escape."""
    text = json.dumps(arguments, ensure_ascii=False)
    return text if text.isascii() or _is_unicode(text) else json.dumps(arguments)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _after_beginning(text: str) -> int:
    """Where the JSON of a call begins: after white space, and what comes before calls."""
    at, end = -1, len(text) - len(text.lstrip())
    while at != end:
        at = end
        for beginning in _BEGINNINGS:
            if text.startswith(beginning, at):
                rest = text[at + len(beginning) :]
                end = len(text) - len(rest.lstrip())
    return end


def _may_begin(text: str) -> bool:
    """Whether a text is the first part of what comes before calls, or ends them."""
    return any(mark.startswith(text) for mark in (*_BEGINNINGS, _CLOSE))


def _may_go_on(error: json.JSONDecodeError, text: str) -> bool:
    """Whether JSON that is not valid may only be unfinished."""
    return error.msg.startswith("Unterminated string") or error.pos >= len(text.rstrip()) - _HALF


def _safe(text: str) -> int:
    """How many characters come before what may be the beginning of a call."""
    for start in range(max(0, len(text) - len(_OPEN) + 1), len(text)):
        if _OPEN.startswith(text[start:]):
            return start
    return len(text)
