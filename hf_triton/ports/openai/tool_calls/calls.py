"""Pieces of an answer after they are read, and calls in the form of OpenAI's streams."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from hf_triton.ports.openai.tool_calls.written_values import as_json, decode


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
    """The answer is a JSON object with name and arguments, or a list of such. Where it is cut off,
    the calls that are whole count, and the rest is no text.
    """

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._num_calls = 0

    def read(self, text: str, *, ends: bool) -> Read:
        read = Read()
        self._pieces.append(text)
        if ends:
            whole = "".join(self._pieces)
            read.text = "" if whole.lstrip().startswith(("{", "[")) else whole
            read.calls = [new_call(at, *call) for at, call in enumerate(_calls(whole))]
            self._num_calls = len(read.calls)
        return read

    def finish_reason(self, reason: str | None) -> str | None:
        return "tool_calls" if reason == "stop" and self._num_calls else reason


def _calls(text: str) -> Iterator[tuple[str, str]]:
    """The name and arguments of each call that is whole."""
    begin = text.find("{")
    with contextlib.suppress(ValueError, RecursionError):  # an answer that is cut off
        while begin >= 0:
            value, end = decode(text, begin)
            yield value["name"], as_json(value["arguments"]) or "{}"
            begin = text.find("{", end)
