"""What a piece of an answer brought, and calls in the form of OpenAI's streams."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

_LITTLE = 512  # characters


class Function(Struct, kw_only=True):
    """A call's function; ``arguments`` are JSON."""

    name: str | UnsetType = UNSET
    arguments: str


class Call(Struct, kw_only=True):
    """A call of a tool, or of a stream a part of one."""

    function: Function
    index: int | UnsetType = UNSET
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET


@dataclass
class Read:
    """The model's reasoning, text that is none of a call, and calls, or parts of them."""

    reasoning: str = ""
    text: str = ""
    calls: list[Call] = field(default_factory=list)


def enough_after(num_waiting: int) -> int:
    """How many characters must wait until they are looked at again, so many having told nothing:
    of a long text an eighth more, or reading it in pieces would take the square of its length.
    """
    return num_waiting + max(0, num_waiting - _LITTLE) // 8


def new_call(index: int, name: str, arguments: str) -> Call:
    """The first part of a call."""
    # Nine letters and digits: Mistral's chat templates take no other.
    call_id = uuid.uuid4().hex[:9]
    return Call(
        function=Function(name=name, arguments=arguments), index=index, id=call_id, type="function"
    )


def more_arguments(index: int, arguments: str) -> Call:
    """A later part of a call."""
    return Call(function=Function(arguments=arguments), index=index)


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
