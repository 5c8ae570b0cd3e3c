"""Finds a model's reasoning, which comes before its answer, in the text as it comes."""

from __future__ import annotations

from generator.openai_api.reading.found_calls import num_safe
from generator.spec.runtime_rules import ReasoningForm


class FoundReasoning:
    """Reasoning up to its end, without the white space around it."""

    def __init__(self, form: ReasoningForm, *, inside: bool) -> None:
        """``inside`` where the prompt has begun it."""
        self._form, self._inside = form, inside
        self._take = self._after_white_space = self._take_begin
        self._waiting = ""

    def read(self, text: str, *, ends: bool) -> tuple[str, str]:
        """Takes the next piece of the answer, the last where it ``ends``; what of it is reasoning,
        and what is not.
        """
        self._waiting += text
        return self._take(ends=ends)

    def _take_begin(self, *, ends: bool) -> tuple[str, str]:
        found, begin = self._waiting.lstrip(), self._form.begin
        if not ends and begin.startswith(found):
            return "", ""
        if found.startswith(begin):
            self._waiting = found[len(begin) :]
        elif not self._inside:
            self._take = self._take_rest
            return self._take(ends=ends)
        self._take, self._after_white_space = self._take_white_space, self._take_reasoning
        return self._take(ends=ends)

    def _take_white_space(self, *, ends: bool) -> tuple[str, str]:
        self._waiting = self._waiting.lstrip()
        if not self._waiting:
            return "", ""
        self._take = self._after_white_space
        return self._take(ends=ends)

    def _take_reasoning(self, *, ends: bool) -> tuple[str, str]:
        reasoning, found, rest = self._waiting.partition(self._form.end)
        if found:
            self._waiting = rest
            self._take, self._after_white_space = self._take_white_space, self._take_rest
            return reasoning.rstrip(), self._take(ends=ends)[1]
        end = len(reasoning) if ends else num_safe(reasoning, (self._form.end,))
        known = reasoning[:end].rstrip()
        self._waiting = reasoning[len(known) :]
        return known, ""

    def _take_rest(self, *, ends: bool) -> tuple[str, str]:  # noqa: ARG002, as the others
        rest, self._waiting = self._waiting, ""
        return "", rest
