"""Calls that a request asks for: a grammar holds them, so that they are told of as they come."""

from __future__ import annotations

import json
import re

from hf_triton.ports.openai.tool_calls.read import Read, enough_after, more_arguments, new_call

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
        """Takes the next piece of the answer, the last where it ``ends``."""
        begun = self._begun
        text = text if begun else text.lstrip()  # which alone is no JSON that clients could parse
        if not text:
            return Read()
        self._begun = True
        part = more_arguments(0, text) if begun else new_call(0, self._name, text)
        return Read(calls=[part])

    def finish_reason(self, reason: str | None) -> str | None:
        """As OpenAI has it, a call that was asked for by name is no reason to stop."""
        return reason


class ListedCalls:
    """The answer is a JSON object with name and arguments, or a list of such."""

    def __init__(self) -> None:
        self._waiting, self._enough = "", 0
        self._num_calls = 0
        self._depth = -1  # of braces within arguments, -1 outside of them
        self._in_text = False  # within one of JSON's

    def read(self, text: str, *, ends: bool) -> Read:
        """Takes the next piece of the answer, the last where it ``ends``."""
        self._waiting += text
        read = Read()
        if not ends and len(self._waiting) < self._enough:
            return read
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
        """An answer that ends with calls ends for them."""
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
            read.calls.append(more_arguments(self._num_calls - 1, self._waiting[:end]))
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
