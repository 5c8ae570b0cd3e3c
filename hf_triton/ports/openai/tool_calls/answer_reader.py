"""Reads one choice of a chat's answer as its model's family writes it.

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

from hf_triton.ports.openai.schema.tools import Tools
from hf_triton.ports.openai.tool_calls.calls import Calls, ListedCalls, NamedCall, Read
from hf_triton.ports.openai.tool_calls.parameter_calls import ParameterCalls
from hf_triton.ports.openai.tool_calls.written_values import (
    BEGIN_OF_PYTHON,
    as_json,
    decode,
    end_of_brackets,
    has_bad_escape,
    python_calls,
)
from hf_triton.runtime.request.chat_formats import MAX_HEAD, ChatFormat, ReasoningForm, ToolForm

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
    """The calls in a text up to ``end`` and its ``text`` beside them; without calls it is text."""

    calls: Sequence[tuple[str, str]]
    end: int
    text: str = ""


def _decoded(text: str, begin: int, *, ends: bool) -> tuple[Any, int] | Found | None:
    """A JSON value and where it ends; else what ``_read_call`` says of it."""
    may_be_whole = ends or _CLOSED.search(text, len(text) - 2 * _HALF) is not None
    try:
        return decode(text, begin, repairs=may_be_whole)
    except json.JSONDecodeError as error:
        # Perhaps it is only unfinished.
        is_within = error.msg.startswith("Unterminated string") or has_bad_escape(error)
        if is_within or error.pos >= len(error.doc.rstrip()) - _HALF:
            return Found((), len(text)) if ends else None
    except (RecursionError, ValueError):  # too deep, NaN, an integer of too many digits
        pass
    depth = 0
    for bracket in _BRACKET.finditer(text, begin):
        depth += 1 if bracket[0] in "{[" else -1
        if not depth:
            return Found((), bracket.end())
    return Found((), len(text)) if ends else None


def _named(value: Any, source: str) -> _Read | None:
    """A call's name, its arguments and its text; None where it has no name."""
    name = value.get("name") if isinstance(value, dict) else None
    if not isinstance(name, str):
        return None
    arguments = value.get("arguments", value.get("parameters"))
    return name, {} if arguments is None else arguments, source


def _elements(text: str, begin: int) -> Iterator[tuple[Any, str]]:
    at = begin + 1
    while found := _BETWEEN.match(text, at):
        at = found.end()
        if text[at] == "]":
            return
        value, end = decode(text, at)
        yield value, text[at:end]
        at = end


class FoundCalls(Calls):
    """Calls among an answer's text. What may become one waits until that is known: a call is told
    of when it is whole, and text that turns out to be none stays text, to the letter.
    """

    def __init__(self, tools: Tools, form: ToolForm) -> None:
        super().__init__()
        self._tools, self._form = tools, form
        self._head = re.compile(form.head) if form.head else None
        self._parameters = ParameterCalls(form, tools) if form.parameter else None
        begins = "|".join(map(re.escape, form.begins))
        self._mark = re.compile(begins)
        self._begin = re.compile(rf"\s*(?:(?:{begins})\s*)*")
        self._between = re.compile("|".join((r"(?:\s|[,;]", *map(re.escape, form.ends))) + ")*")
        self._within_text = False  # where nothing is a call without a mark

    def _take(self, read: Read, *, ends: bool) -> bool:
        if self._within_text:
            return self._take_text(read, ends=ends)
        if self._num_calls:
            self._waiting = self._waiting[self._after_call(ends=ends) :]
        # A call begins after white space, and what comes before calls.
        begun = _end(self._begin, self._waiting)
        rest = self._waiting[begun:]
        marks = (*self._form.begins, *self._form.ends)
        if not ends and (not rest or any(mark.startswith(rest) for mark in marks)):
            return False
        found: Found | None = Found((), begun)
        if self._form.bare or self._waiting[:begun].strip():
            found = self._read_call(self._waiting, begun, ends=ends)
        if found is None:
            return False
        if not found.calls:
            self._within_text = True
            self._take_as_text(found.end, read)
            return True
        for name, arguments in found.calls:
            if self._tools.parallel or not self._num_calls:
                self._add(read, name, arguments)
        read.text += found.text
        self._waiting = self._waiting[found.end :]
        return True

    def _take_text(self, read: Read, *, ends: bool) -> bool:
        if found := self._mark.search(self._waiting):
            self._within_text = False
            self._take_as_text(found.start(), read)
            return True
        safe = len(self._waiting) if ends else num_safe(self._waiting, self._form.begins)
        self._take_as_text(safe, read)
        return safe > 0

    def _take_as_text(self, end: int, read: Read) -> None:
        read.text += self._waiting[:end]
        self._waiting = self._waiting[end:]

    def _after_call(self, *, ends: bool) -> int:
        end = _end(self._between, self._waiting)
        rest = self._waiting[end:]
        is_half = any(mark.startswith(rest) for mark in self._form.ends)
        return end + len(rest) if ends and rest and is_half else end

    def _read_call(self, text: str, begin: int, *, ends: bool) -> Found | None:
        """What stands at ``begin``, after any mark; None where more text may make it a call."""
        if self._form.is_python and (found := BEGIN_OF_PYTHON.match(text, begin)):
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
            if not ends:
                return None
            calls, end = self._parameters.read(text)
            return self._found([(*call, "") for call in calls], max(begin, end))
        decoded = _decoded(text, head.end(), ends=ends)
        if not isinstance(decoded, tuple):
            return decoded
        return self._found([(head["name"], decoded[0], "")], decoded[1])

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

    def _read_python(self, text: str, begin: int, name: str, *, ends: bool) -> Found | None:
        end = end_of_brackets(text, begin)
        if end is None:
            is_call = name in self._tools.names
            return Found((), len(text) if is_call else begin + 1) if ends else None
        try:
            return self._found(list(python_calls(text[begin:end])), end)
        except ValueError:
            return Found((), end)

    def _found(self, read: Sequence[_Read | None], end: int) -> Found:
        """Calls of these tools; anything else stays text."""
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


def _end(pattern: re.Pattern[str], text: str) -> int:
    found = pattern.match(text)
    return found.end() if found else 0


def num_safe(text: str, marks: Sequence[str]) -> int:
    """How many characters come before what may be a mark, or its beginning, at the end."""
    longest = max(map(len, marks), default=0)
    for start in range(max(0, len(text) - longest), len(text)):
        if any(mark.startswith(text[start:]) for mark in marks):
            return start
    return len(text)


class AnswerReader:
    """Finds the reasoning of an answer, then its calls."""

    def __init__(self, tools: Tools | None, chat_format: ChatFormat) -> None:
        form = chat_format.reasoning_form
        self._reasoning = None if form is None else FoundReasoning(form, inside=chat_format.inside)
        self._calls: FoundCalls | NamedCall | ListedCalls | None = None
        if tools is not None and tools.forced is None:
            self._calls = FoundCalls(tools, chat_format.tool_form)
        elif tools is not None:
            self._calls = NamedCall(tools.forced) if tools.forced else ListedCalls()

    def read(self, text: str, *, ends: bool) -> Read:
        """Takes the next piece of the answer, the last where it ``ends``."""
        reasoning = ""
        if self._reasoning is not None:
            reasoning, text = self._reasoning.read(text, ends=ends)
        read = Read(text=text) if self._calls is None else self._calls.read(text, ends=ends)
        read.reasoning = reasoning
        return read

    def finish_reason(self, reason: str | None) -> str | None:
        return reason if self._calls is None else self._calls.finish_reason(reason)


class FoundReasoning:
    """Reasoning up to its end, without the white space around it."""

    def __init__(self, form: ReasoningForm, *, inside: bool) -> None:
        """``inside`` where the prompt has begun it."""
        self._form, self._inside = form, inside
        self._marks_outside = (form.begin, *form.dropped) if form.dropped else ()
        self._waiting = ""
        self._has_begun = self._skips_space = False

    def read(self, text: str, *, ends: bool) -> tuple[str, str]:
        """Takes the next piece of the answer; gives reasoning and the rest."""
        self._waiting += text
        reasoning = rest = ""
        while self._has_begun or self._begin(ends=ends):
            if self._skips_space:
                self._waiting = self._waiting.lstrip()
                self._skips_space = not self._waiting
            marks = (self._form.end,) if self._inside else self._marks_outside
            safe = len(self._waiting) if ends else num_safe(self._waiting, marks)
            found = [(at, mark) for mark in marks if (at := self._waiting.find(mark)) >= 0]
            end, mark = min(found, default=(safe, ""))
            taken = self._waiting[:end]
            if self._inside:
                taken = taken.rstrip()
                reasoning += taken
            else:
                rest += taken
            if not mark:
                self._waiting = "" if ends else self._waiting[len(taken) :]
                break
            self._waiting = self._waiting[end + len(mark) :]
            if self._inside or mark == self._form.begin:
                reasoning += "" if self._inside else "\n"
                self._inside, self._skips_space = not self._inside, True
        return reasoning, rest

    def _begin(self, *, ends: bool) -> bool:
        """Whether it is known if the answer begins with reasoning."""
        found, begin = self._waiting.lstrip(), self._form.begin
        if not ends and begin.startswith(found):
            return False
        if found.startswith(begin):
            self._waiting, self._inside = found[len(begin) :], True
        self._has_begun, self._skips_space = True, self._inside
        return True
