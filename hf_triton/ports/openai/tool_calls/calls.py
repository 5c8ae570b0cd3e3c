"""Pieces of an answer after they are read, and calls in the form of OpenAI's streams."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

_LITTLE = 512  # characters


class Function(Struct, kw_only=True):
    name: str | UnsetType = UNSET
    arguments: str


class Call(Struct, kw_only=True):
    function: Function
    index: int | UnsetType = UNSET
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET


@dataclass
class Read:
    reasoning: str = ""
    text: str = ""
    calls: list[Call] = field(default_factory=list)


def enough_after(num_waiting: int) -> int:
    """The number of characters that must wait before a next look; each look costs all of them."""
    return num_waiting + max(0, num_waiting - _LITTLE) // 8


def new_call(index: int, name: str, arguments: str) -> Call:
    # Nine letters and digits: Mistral's chat templates take no other.
    call_id = uuid.uuid4().hex[:9]
    return Call(
        function=Function(name=name, arguments=arguments), index=index, id=call_id, type="function"
    )


def whole_calls(parts: Iterable[Call]) -> list[Call]:
    """The calls of a whole answer, put together from what a stream would have sent."""
    calls: dict[int | UnsetType, Call] = {}
    for part in parts:
        known = calls.get(part.index)
        if known is None:
            whole = replace(part.function)
            calls[part.index] = Call(function=whole, id=part.id, type="function")
        else:
            known.function.arguments += part.function.arguments
    return list(calls.values())


_NAME = r'"(?:[^"\\]|\\.)*"'
_HEAD = re.compile(rf'[\s\[,}}]*\{{\s*"name"\s*:\s*({_NAME})\s*,\s*"arguments"\s*:\s*')
# Where the answer was cut off, what is left is no text for anybody: a call's beginning, or what
# lies between two.
_BEGINNING = re.compile(r"[\s\[]*(?:\{[^}]*)?")
_AFTER_CALL = re.compile(r"\s*(?:[\]},].*)?", re.DOTALL)
_MARK = re.compile(r'\\(?:.|$)|["{}]', re.DOTALL)


class NamedCall:
    """The answer is the arguments of the one call that the request named."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._begun = False

    def read(self, text: str, *, ends: bool) -> Read:  # noqa: ARG002, as ListedCalls
        begun = self._begun
        text = text if begun else text.lstrip()  # which alone is no JSON that clients could parse
        if not text:
            return Read()
        self._begun = True
        more = Call(function=Function(arguments=text), index=0)
        return Read(calls=[more if begun else new_call(0, self._name, text)])

    def finish_reason(self, reason: str | None) -> str | None:
        """Leaves the reason: to OpenAI a call that was asked for by name is no reason to stop."""
        return reason


class ListedCalls:
    """The answer is a JSON object with name and arguments, or a list of such."""

    def __init__(self) -> None:
        self._waiting, self._enough = "", 0
        self._num_calls = 0
        self._depth = -1  # of braces within arguments, -1 outside of them
        self._in_text = False  # within one of JSON's

    def read(self, text: str, *, ends: bool) -> Read:
        self._waiting += text
        read = Read()
        if ends or len(self._waiting) >= self._enough:
            while self._waiting and (
                self._take_head(read) if self._depth < 0 else self._take_arguments(read)
            ):
                pass
            self._enough = enough_after(len(self._waiting))
        rest = _AFTER_CALL if self._num_calls else _BEGINNING
        if ends and not rest.fullmatch(self._waiting):
            read.text, self._waiting = self._waiting, ""
        return read

    def finish_reason(self, reason: str | None) -> str | None:
        return "tool_calls" if reason == "stop" and self._num_calls else reason

    def _take_head(self, read: Read) -> bool:
        head = _HEAD.match(self._waiting)
        if head is None:
            return False
        read.calls.append(new_call(self._num_calls, json.loads(head[1]), ""))
        self._num_calls += 1
        self._waiting, self._depth = self._waiting[head.end() :], 0
        return True

    def _take_arguments(self, read: Read) -> bool:
        """Up to their end, or to half an escape; white space alone is no JSON to parse."""
        if not self._depth:
            self._waiting = self._waiting.lstrip()
        end = self._end_of_arguments()
        if end:
            more = Function(arguments=self._waiting[:end])
            read.calls.append(Call(function=more, index=self._num_calls - 1))
        self._waiting = self._waiting[end:]
        return self._depth < 0

    def _end_of_arguments(self) -> int:
        for mark in _MARK.finditer(self._waiting):
            found = mark[0]
            if found == "\\":
                return mark.start()
            if found == '"':
                self._in_text = not self._in_text
            elif not self._in_text and found in "{}":
                self._depth += 1 if found == "{" else -1
                if not self._depth:
                    self._depth = -1
                    return mark.end()
        return len(self._waiting)
