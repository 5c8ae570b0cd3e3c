"""Finds a model's reasoning, which comes before its answer, in the text as it comes."""

from __future__ import annotations

from collections.abc import Callable

from generator.spec.runtime_rules import ReasoningForm
from hf_triton.ports.openai.tool_calls.found_calls import num_safe


class FoundReasoning:
    """Reasoning up to its end, without the white space around it."""

    def __init__(self, form: ReasoningForm, *, inside: bool) -> None:
        """``inside`` where the prompt has begun it."""
        self._form, self._inside = form, inside
        self._marks = (form.begin, *form.dropped) if form.dropped else ()
        self._take = self._after_white_space = self._take_begin
        self._waiting = self._reasoning = self._rest = ""

    def read(self, text: str, *, ends: bool) -> tuple[str, str]:
        """Takes the next piece of the answer, the last where it ``ends``; what of it is reasoning,
        and what is not.
        """
        self._waiting += text
        self._reasoning = self._rest = ""
        while self._take(ends=ends):
            pass
        return self._reasoning, self._rest

    def _take_begin(self, *, ends: bool) -> bool:
        """Whether there is more to take, as the others."""
        found, begin = self._waiting.lstrip(), self._form.begin
        if not ends and begin.startswith(found):
            return False
        if found.startswith(begin):
            self._waiting = found[len(begin) :]
        elif not self._inside:
            self._take = self._take_rest
            return True
        return self._skip_white_space(self._take_reasoning)

    def _skip_white_space(self, then: Callable[..., bool]) -> bool:
        self._take, self._after_white_space = self._take_white_space, then
        return True

    def _take_white_space(self, *, ends: bool) -> bool:  # noqa: ARG002, as the others
        self._waiting = self._waiting.lstrip()
        if self._waiting:
            self._take = self._after_white_space
        return bool(self._waiting)

    def _take_reasoning(self, *, ends: bool) -> bool:
        reasoning, found, rest = self._waiting.partition(self._form.end)
        if found:
            self._reasoning += reasoning.rstrip()
            self._waiting = rest
            return self._skip_white_space(self._take_rest)
        end = len(reasoning) if ends else num_safe(reasoning, (self._form.end,))
        known = reasoning[:end].rstrip()
        self._reasoning += known
        self._waiting = "" if ends else reasoning[len(known) :]
        return False

    def _take_rest(self, *, ends: bool) -> bool:
        found = [(at, mark) for mark in self._marks if (at := self._waiting.find(mark)) >= 0]
        if found:
            at, mark = min(found)
            self._rest += self._waiting[:at]
            self._waiting = self._waiting[at + len(mark) :]
            if mark != self._form.begin:
                return True
            self._reasoning += "\n"
            return self._skip_white_space(self._take_reasoning)
        is_whole = ends or not self._marks
        safe = len(self._waiting) if is_whole else num_safe(self._waiting, self._marks)
        self._rest += self._waiting[:safe]
        self._waiting = self._waiting[safe:]
        return False
