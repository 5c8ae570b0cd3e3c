"""One call of a tool, or a list of them, in the form that the model's family writes.

The forms are data (hf_triton/runtime/request/chat_formats.py). A text is a call only where it names
a tool that the request has, with arguments that are a JSON object; any other stays text, up to its
end: what looks like a call within it is none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from generator.spec.runtime_rules import MAX_HEAD, ToolForm
from hf_triton.ports.openai.schema.tools import Tools
from hf_triton.ports.openai.tool_calls import python_calls
from hf_triton.ports.openai.tool_calls.json_values import as_json, decode, has_bad_escape
from hf_triton.ports.openai.tool_calls.parameter_calls import ParameterCalls

# JSON that can't be a call, told by how it begins: its first name, or what a list holds.
_NO_CALL = re.compile(
    r'(?:\[\s*)?\{\s*(?:"(?!(?:name|arguments|parameters|type|id)")[^"]*"\s*:|[^\s"])|\[\s*[^\s{]'
)
# Of text that ends within a literal or an escape, JSON's decoder finds fault a little before.
_HALF = 8
# JSON with an escape that it does not know is read again only where it may have come to its end.
_CLOSED = re.compile(r"[\]}]")
_BRACKET = re.compile(r"[\[\]{}]")
_BETWEEN = re.compile(r"[\s,]*")


# A call's name, its arguments and its text.
_Read = tuple[str, Any, str]


@dataclass(frozen=True)
class Found:
    """The names and the arguments' JSON of the calls in a text up to ``end``, and its ``text`` that
    is none of them; where there are none, it is no call up to there.
    """

    calls: Sequence[tuple[str, str]]
    end: int
    text: str = ""


class CallForm:
    """Reads calls of ``tools`` in one form."""

    def __init__(self, form: ToolForm, tools: Tools) -> None:
        self._form, self._tools = form, tools
        self._head = re.compile(form.head) if form.head else None
        self._parameters = ParameterCalls(form, tools) if form.parameter else None

    def read(self, text: str, begin: int, *, ends: bool) -> Found | None:
        """What stands at ``begin``, after any mark; None where more text may make it a call."""
        if self._form.is_python and (found := python_calls.BEGIN.match(text, begin)):
            is_known = found["is_call"] or ends
            return self._read_python(text, begin, found["name"], ends=ends) if is_known else None
        if text[begin : begin + 1] in ("{", "["):
            return self._read_json(text, begin, ends=ends)
        if self._head is None:
            return Found((), begin)
        head = self._head.match(text, begin)
        if head is None:
            waits = not ends and len(text) - begin < MAX_HEAD
            return None if waits else Found((), begin)
        if self._parameters is not None:
            return self._read_parameters(self._parameters, text, begin) if ends else None
        return self._read_arguments(text, head["name"], head.end(), ends=ends)

    def _read_json(self, text: str, begin: int, *, ends: bool) -> Found | None:
        if _NO_CALL.match(text, begin):
            return Found((), begin)
        decoded = _decoded(text, begin, ends=ends)
        if not isinstance(decoded, tuple):
            return decoded
        value, end = decoded
        if not isinstance(value, list):
            return self._found([_named(value, text[begin:end])], end)
        return self._found([_named(*one) for one in _elements(text, begin)], end)

    def _read_arguments(self, text: str, name: str, begin: int, *, ends: bool) -> Found | None:
        decoded = _decoded(text, begin, ends=ends)
        if not isinstance(decoded, tuple):
            return decoded
        return self._found([(name, decoded[0], "")], decoded[1])

    def _read_parameters(self, reader: ParameterCalls, text: str, begin: int) -> Found:
        calls = reader.read(text)
        if not calls or calls[0].arguments is None:
            return Found((), max(begin, calls[0].end if calls else len(text)))
        read = [calls[0]]
        for call in calls[1:]:
            if call.arguments is None or text[read[-1].end : call.begin].strip():
                break
            read.append(call)
        return self._found([(call.name, call.arguments, "") for call in read], read[-1].end)

    def _read_python(self, text: str, begin: int, name: str, *, ends: bool) -> Found | None:
        end = python_calls.end_of_brackets(text, begin)
        if end is None:
            is_call = name in self._tools.names
            return Found((), len(text) if is_call else begin + 1) if ends else None
        try:
            return self._found(list(python_calls.python_calls(text[begin:end])), end)
        except ValueError:
            return Found((), end)

    def _found(self, read: Sequence[_Read | None], end: int) -> Found:
        """The calls of these tools, if all of them are calls; others stay text."""
        calls, text = [], []
        for one in read:
            if one is None:
                return Found((), end)
            arguments = as_json(one[1]) if one[0] in self._tools.names else None
            if arguments is None:
                text.append(one[2])
            else:
                calls.append((one[0], arguments))
        return Found(calls, end, "\n".join(text) if calls else "")


def _decoded(text: str, begin: int, *, ends: bool) -> tuple[Any, int] | Found | None:
    """A JSON value and where it ends; else what ``CallForm.read`` says of it."""
    may_be_whole = ends or _CLOSED.search(text, len(text) - 2 * _HALF) is not None
    try:
        return decode(text, begin, repairs=may_be_whole)
    except json.JSONDecodeError as error:
        if _may_go_on(error):
            return Found((), len(text)) if ends else None
    except (RecursionError, ValueError):  # too deep, NaN, an integer of too many digits
        pass
    end = _end_of_brackets(text, begin)
    return Found((), end or len(text)) if end or ends else None


def _end_of_brackets(text: str, begin: int) -> int | None:
    """Where brackets that begin there are closed, whatever stands in them."""
    depth = 0
    for found in _BRACKET.finditer(text, begin):
        depth += 1 if found[0] in "{[" else -1
        if not depth:
            return found.end()
    return None


def _may_go_on(error: json.JSONDecodeError) -> bool:
    """Whether JSON that is not valid may only be unfinished."""
    at_end = len(error.doc.rstrip()) - _HALF
    is_within = error.msg.startswith("Unterminated string") or has_bad_escape(error)
    return is_within or error.pos >= at_end


def _named(value: Any, source: str) -> _Read | None:
    """A call's name, its arguments and its text; None of what has no name."""
    name = value.get("name") if isinstance(value, dict) else None
    if not isinstance(name, str):
        return None
    arguments = value.get("arguments", value.get("parameters"))
    return name, {} if arguments is None else arguments, source


def _elements(text: str, begin: int) -> Iterator[tuple[Any, str]]:
    """The elements of a JSON list, and their texts."""
    at = begin + 1
    while found := _BETWEEN.match(text, at):
        at = found.end()
        if text[at] == "]":
            return
        value, end = decode(text, at)
        yield value, text[at:end]
        at = end
