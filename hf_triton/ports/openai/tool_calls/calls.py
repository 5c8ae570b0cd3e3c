"""Pieces of an answer after they are read, and calls in the form of OpenAI's streams."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import Literal

from msgspec import UNSET, Struct, UnsetType


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


class NamedCall:
    """The answer is the arguments of the one call that the request named."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._begun = False

    def read(self, text: str, *, ends: bool) -> Read:  # noqa: ARG002, as FoundCalls
        begun = self._begun
        text = text if begun else text.lstrip()  # which alone is no JSON that clients could parse
        if not text:
            return Read()
        self._begun = True
        more = Call(function=Function(arguments=text), index=0)
        return Read(calls=[more if begun else new_call(0, self._name, text)])
