"""Reads one choice of a chat's answer as its model's family writes it.

The forms are data (hf_triton/text_generation/request/chat_formats.py). A text is a call only where
it names a tool that the request has, with arguments that are a JSON object; any other stays text,
up to its end: what looks like a call within it is none.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

from hf_triton.ports.openai.schema.tools import Tools
from hf_triton.ports.openai.tool_calls.parameter_calls import ParameterCalls
from hf_triton.ports.openai.tool_calls.written_values import (
    BEGIN_OF_PYTHON,
    as_json,
    decode,
    end_of_brackets,
    python_calls,
)
from hf_triton.text_generation.request.chat_formats import (
    JSON,
    MAX_HEAD,
    TOOL_FORMS,
    ChatFormat,
    ReasoningForm,
    ToolForm,
)

# JSON that can't be a call, told by how it begins: its first name, or what a list holds.
_NO_CALL = re.compile(
    r'(?:\[\s*)?\{\s*(?:"(?!(?:name|arguments|parameters|type|id)")[^"]*"\s*:|[^\s"])|\[\s*[^\s{]'
)
_BETWEEN = re.compile(r"[\s,]*")


class Function(Struct, kw_only=True):
    name: str | UnsetType = UNSET
    arguments: str


class Call(Struct, kw_only=True):
    function: Function
    index: int | UnsetType = UNSET
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET


def new_call(index: int, name: str, arguments: str) -> Call:
    # Nine letters and digits: Mistral's chat templates take no other.
    call_id = uuid.uuid4().hex[:9]
    return Call(
        function=Function(name=name, arguments=arguments), index=index, id=call_id, type="function"
    )


# A call's name, its arguments and its text.
_Read = tuple[str, Any, str]


@dataclass(frozen=True)
class Found:
    """The calls in a text up to ``end`` and its ``text`` beside them; without calls it is text."""

    calls: Sequence[tuple[str, str]]
    end: int
    text: str = ""


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


class FoundCalls:
    """Calls in an answer's text, returned once the answer is whole: text from a possible call on
    waits for the end. Text that turns out to be no call is returned unchanged; if calls are forced,
    it can only be one that was cut off, and is left out.
    """

    def __init__(self, tools: Tools, form: ToolForm) -> None:
        self._tools, self._form = tools, form
        self._head = re.compile(form.head) if form.head else None
        self._parameters = ParameterCalls(form, tools) if form.parameter else None
        begins = "|".join(map(re.escape, form.begins))
        self._mark = re.compile(begins)
        self._begin = re.compile(rf"\s*(?:(?:{begins})\s*)*")
        self._between = re.compile("|".join((r"(?:\s|[,;]", *map(re.escape, form.ends))) + ")*")
        self._pieces: list[str] = []  # that wait
        self._holds = False  # whether a call may have begun
        self._within_text = False  # where nothing is a call without a mark
        self.num_calls = 0

    def read(self, text: str, *, ends: bool) -> tuple[str, list[Call]]:
        """Takes the next piece; gives text and calls."""
        taken, calls = "", list[Call]()
        self._pieces.append(text)
        if ends:
            taken, calls = self._take_all("".join(self._pieces))
        elif not self._holds and (self._within_text or text.strip()):
            waiting = "".join(self._pieces)
            safe = self._num_text(waiting)
            taken, self._pieces = waiting[:safe], [waiting[safe:]]
        return "" if self._tools.forced is not None else taken, calls

    def _num_text(self, waiting: str) -> int:
        """The number of characters before what may be a call."""
        if not self._within_text:
            begun = _end(self._begin, waiting)
            rest, has_mark = waiting[begun:], bool(waiting[:begun].strip())
            is_open = any(mark.startswith(rest) for mark in self._form.begins)
            if self._form.bare and not is_open:
                found = self._read_call(rest, 0, 0)
                is_open = bool(found.calls or found.end or (self._head and len(rest) < MAX_HEAD))
            self._holds = has_mark or (is_open and len(rest) >= MAX_HEAD)
            if has_mark or is_open:
                return 0
            self._within_text = True
        mark = self._mark.search(waiting)
        self._holds = mark is not None
        return mark.start() if mark else num_safe(waiting, self._form.begins)

    def _take_all(self, text: str) -> tuple[str, list[Call]]:
        taken, calls, at = "", list[Call](), 0
        while at < len(text):
            if self._within_text:
                mark = self._mark.search(text, at)
                end = mark.start() if mark else len(text)
                taken += text[at:end]
                at, self._within_text = end, False
            if self.num_calls:
                at = self._after_call(text, at)
            # A call begins after white space, and what comes before calls.
            begun = _end(self._begin, text, at)
            found = Found((), begun)
            if self._form.bare or text[at:begun].strip():
                found = self._read_call(text, at, begun)
            self._within_text = not found.calls
            taken += found.text if found.calls else text[at : found.end]
            for name, arguments in found.calls:
                if self._tools.parallel or not self.num_calls:
                    calls.append(new_call(self.num_calls, name, arguments))
                    self.num_calls += 1
            at = found.end
        return taken, calls

    def _after_call(self, text: str, at: int) -> int:
        """The end of a call's closing marks, of which the answer may end in half a mark."""
        end = _end(self._between, text, at)
        rest = text[end:]
        return len(text) if rest and any(one.startswith(rest) for one in self._form.ends) else end

    def _read_call(self, text: str, at: int, begin: int) -> Found:
        """Reads the call, or text, at ``at``; any marks before it end at ``begin``."""
        if self._form.is_python and (found := BEGIN_OF_PYTHON.match(text, begin)):
            return self._read_python(text, begin, found["name"])
        is_json = text.startswith(("{", "["), begin)
        head = self._head.match(text, begin) if self._head and not is_json else None
        if _NO_CALL.match(text, begin) or not (is_json or head):
            return Found((), begin)
        if head and self._parameters is not None:
            calls, end = self._parameters.read(text, at)
            return self._found([(*call, "") for call in calls], max(begin, end))
        start = head.end() if head else begin
        try:
            value, end = decode(text, start)
        except (RecursionError, ValueError):  # too deep, NaN, an integer of too many digits
            # If the answer ends within the value, nothing in it is a call.
            return Found((), end_of_brackets(text, start) or len(text))
        if head:
            return self._found([(head["name"], value, "")], end)
        if not isinstance(value, list):
            return self._found([_named(value, text[begin:end])], end)
        return self._found([_named(*one) for one in _elements(text, begin)], end)

    def _read_python(self, text: str, begin: int, name: str) -> Found:
        end = end_of_brackets(text, begin)
        if end is None:
            return Found((), len(text) if name in self._tools.names else begin + 1)
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


class NamedCall:
    """The answer is the arguments of the one call that the request named."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._begun = False

    def read(self, text: str, *, ends: bool) -> tuple[str, list[Call]]:  # noqa: ARG002
        begun = self._begun
        text = text if begun else text.lstrip()  # which alone is no JSON that clients could parse
        if not text:
            return "", []
        self._begun = True
        more = Call(function=Function(arguments=text), index=0)
        return "", [more if begun else new_call(0, self._name, text)]


def _end(pattern: re.Pattern[str], text: str, at: int = 0) -> int:
    found = pattern.match(text, at)
    return found.end() if found else at


def num_safe(text: str, marks: Sequence[str]) -> int:
    """The number of characters before a mark, or its beginning, at the end of a text."""
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
        self._calls: FoundCalls | NamedCall | None = None
        if tools is not None and tools.forced:
            self._calls = NamedCall(tools.forced)
        elif tools is not None:
            # Forced ones are JSON, whatever the model's own form.
            form_of_calls = chat_format.tool_form if tools.forced is None else TOOL_FORMS[JSON]
            self._calls = FoundCalls(tools, form_of_calls)

    def read(self, text: str, *, ends: bool) -> tuple[str, str, list[Call]]:
        """Takes the next piece of the answer, the last where it ``ends``; gives reasoning, text and
        calls.
        """
        reasoning, calls = "", list[Call]()
        if self._reasoning is not None:
            reasoning, text = self._reasoning.read(text, ends=ends)
        if self._calls is not None:
            text, calls = self._calls.read(text, ends=ends)
        return reasoning, text, calls

    def finish_reason(self, reason: str | None) -> str | None:
        """To OpenAI a call that was asked for by name is no reason to stop."""
        has_called = isinstance(self._calls, FoundCalls) and self._calls.num_calls
        return "tool_calls" if reason == "stop" and has_called else reason


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
        """Returns True once enough text has come to tell if the answer begins with reasoning."""
        found, begin = self._waiting.lstrip(), self._form.begin
        if not ends and begin.startswith(found):
            return False
        if found.startswith(begin):
            self._waiting, self._inside = found[len(begin) :], True
        self._has_begun, self._skips_space = True, self._inside
        return True
