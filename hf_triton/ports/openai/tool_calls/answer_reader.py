"""Reads one choice of a chat's answer as its model's family writes it."""

from __future__ import annotations

from typing import Protocol

from generator.spec.runtime_rules import ChatFormat
from hf_triton.ports.openai.schema.tools import Tools
from hf_triton.ports.openai.tool_calls.forced_calls import ListedCalls, NamedCall
from hf_triton.ports.openai.tool_calls.found_calls import FoundCalls
from hf_triton.ports.openai.tool_calls.read import Read
from hf_triton.ports.openai.tool_calls.reasoning import FoundReasoning


class _Calls(Protocol):
    def read(self, text: str, *, ends: bool) -> Read:
        """Takes the next piece of the answer, the last where it ``ends``."""

    def finish_reason(self, reason: str | None) -> str | None:
        """Why the answer ended, in OpenAI's words."""


class AnswerReader:
    """Finds the reasoning of an answer, then its calls."""

    def __init__(self, tools: Tools | None, chat_format: ChatFormat) -> None:
        form = chat_format.reasoning_form
        self._reasoning = None if form is None else FoundReasoning(form, inside=chat_format.inside)
        self._calls = None if tools is None else _reader_of_calls(tools, chat_format)

    def read(self, text: str, *, ends: bool) -> Read:
        """Takes the next piece of the answer, the last where it ``ends``."""
        reasoning = ""
        if self._reasoning is not None:
            reasoning, text = self._reasoning.read(text, ends=ends)
        read = Read(text=text) if self._calls is None else self._calls.read(text, ends=ends)
        read.reasoning = reasoning
        return read

    def finish_reason(self, reason: str | None) -> str | None:
        """Why the answer ended, in OpenAI's words."""
        return reason if self._calls is None else self._calls.finish_reason(reason)


def _reader_of_calls(tools: Tools, chat_format: ChatFormat) -> _Calls:
    if tools.forced is None:
        return FoundCalls(tools, chat_format.tool_form)
    return NamedCall(tools.forced) if tools.forced else ListedCalls()
