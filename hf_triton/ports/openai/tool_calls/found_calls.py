"""Finds a model's calls of tools in the text that it writes, as it comes."""

from __future__ import annotations

import re

from generator.spec.runtime_rules import ToolForm
from hf_triton.ports.openai.schema.tools import Tools
from hf_triton.ports.openai.tool_calls.call_forms import CallForm, Found
from hf_triton.ports.openai.tool_calls.read import Read, enough_after, new_call


class FoundCalls:
    """Calls among an answer's text. What may become one waits until that is known: a call is told
    of when it is whole, and text that turns out to be none stays text, to the letter.
    """

    def __init__(self, tools: Tools, form: ToolForm) -> None:
        self._tools, self._form = tools, form
        self._call_form = CallForm(form, tools)
        between = (r"\s", "[,;]", *map(re.escape, form.ends))
        self._between = re.compile(f"(?:{'|'.join(between)})*")
        self._waiting, self._enough = "", 0
        self._num_calls = 0
        self._within_text = False  # where nothing is a call without a mark

    def read(self, text: str, *, ends: bool) -> Read:
        """Takes the next piece of the answer, the last where it ``ends``."""
        self._waiting += text
        read = Read()
        if ends or len(self._waiting) >= self._enough:
            while self._waiting and self._take(read, ends=ends):
                pass
            self._enough = enough_after(len(self._waiting))
        return read

    def finish_reason(self, reason: str | None) -> str | None:
        """An answer that ends with calls ends for them."""
        return "tool_calls" if reason == "stop" and self._num_calls else reason

    def _take(self, read: Read, *, ends: bool) -> bool:
        """Takes what is certain from the front of what waits; False where nothing is."""
        if self._within_text:
            return self._take_text(read, ends=ends)
        if self._num_calls:
            self._waiting = self._waiting[self._after_call(ends=ends) :]
        begun = self._after_begins()
        rest = self._waiting[begun:]
        if not ends and (not rest or self._may_begin(rest)):
            return False
        found: Found | None = Found((), begun)
        if self._form.bare or self._waiting[:begun].strip():
            found = self._call_form.read(self._waiting, begun, ends=ends)
        if found is None:
            return False
        if found.calls:
            self._add_calls(found, read)
        else:
            self._within_text = True
            self._take_as_text(found.end, read)
        return True

    def _add_calls(self, found: Found, read: Read) -> None:
        for name, arguments in found.calls:
            if self._tools.parallel or not self._num_calls:
                read.calls.append(new_call(self._num_calls, name, arguments))
                self._num_calls += 1
        read.text += found.text
        self._waiting = self._waiting[found.end :]

    def _take_text(self, read: Read, *, ends: bool) -> bool:
        """Text up to the next call, or to what may be its beginning."""
        found = [at for mark in self._form.begins if (at := self._waiting.find(mark)) >= 0]
        if found:
            self._within_text = False
            self._take_as_text(min(found), read)
            return True
        safe = len(self._waiting) if ends else num_safe(self._waiting, self._form.begins)
        self._take_as_text(safe, read)
        return safe > 0

    def _take_as_text(self, end: int, read: Read) -> None:
        read.text += self._waiting[:end]
        self._waiting = self._waiting[end:]

    def _after_begins(self) -> int:
        """Where a call begins: after white space, and what comes before calls."""
        text = self._waiting
        at, end = -1, len(text) - len(text.lstrip())
        while at != end:
            at = end
            for mark in self._form.begins:
                if text.startswith(mark, at):
                    rest = text[at + len(mark) :]
                    end = len(text) - len(rest.lstrip())
        return end

    def _after_call(self, *, ends: bool) -> int:
        """Where what stands between two calls ends."""
        found = self._between.match(self._waiting)
        end = found.end() if found else 0
        rest = self._waiting[end:]
        is_half = any(mark.startswith(rest) for mark in self._form.ends)
        return end + len(rest) if ends and rest and is_half else end

    def _may_begin(self, text: str) -> bool:
        """Whether a text is the first part of what comes before calls, or ends them."""
        return any(mark.startswith(text) for mark in (*self._form.begins, *self._form.ends))


def num_safe(text: str, marks: tuple[str, ...]) -> int:
    """How many characters come before what may be the beginning of a mark."""
    longest = max(map(len, marks))
    for start in range(max(0, len(text) - longest + 1), len(text)):
        if any(mark.startswith(text[start:]) for mark in marks):
            return start
    return len(text)
