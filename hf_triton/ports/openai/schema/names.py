"""What errors call the parts of a request: what is sent on to a model has names of its own, and a
caller knows those of what they sent.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hf_triton.ports.openai.schema.errors import ApiError

# ``tools[0].function.name`` of what is sent on to the same of what came.
Own = Callable[[str], str]
_PLACE = r"[a-z_]\w*(?:\[\d+\]|\.\w+)*"
# Objects of a request of Triton's, whose fields are often a caller's own.
_OBJECT = "sampling_parameters|chat_template_kwargs"
# ``temperature: got -1``, ``messages[0].content: got 1``, ``text_input and messages: both given``
HEAD = re.compile(
    rf"(?:({_OBJECT}): (?={_PLACE}(?: and {_PLACE})?: ))?({_PLACE})(?: and ({_PLACE}))?(?=: )"
)
_TOP = re.compile(r"\w+")


def as_it_is(place: str) -> str:
    """The same place."""
    return place


@dataclass(frozen=True)
class Names:
    """``own`` gives a place its caller's name; ``advice`` are words of models' errors, and what a
    caller can do instead.
    """

    own: Own = as_it_is
    advice: Mapping[str, str] = field(default_factory=dict)

    def of(self, error: ApiError) -> ApiError:
        """The same error about the fields that its caller knows."""
        head = HEAD.match(error.message)
        if error.status != 400 or error.param is None:
            return error
        if head is None:
            return replace(error, param=self.own(error.param))
        outer, *found = head.groups()
        inner = [f"{outer}.{one}" if outer else one for one in found if one]
        places = list(dict.fromkeys(map(self.own, inner)))
        param = places[0] if error.param == inner[0] else top(places[0])
        rest = error.message[head.end() :]
        for words, instead in self.advice.items():
            rest = rest.replace(words, instead)
        return replace(error, message=" and ".join(places) + rest, param=param)

    def then(self, own: Own) -> Names:
        """Those of a caller to whom ``own`` gives the names of these."""
        return replace(self, own=lambda place: own(self.own(place)))


def top(place: str) -> str:
    """The field that a place lies in."""
    found = _TOP.match(place)
    return found[0] if found else place


def by_field(known: Mapping[str, str]) -> Own:
    """Gives the field that a place lies in its name in ``known``."""

    def own(place: str) -> str:
        name = top(place)
        return known.get(name, name) + place[len(name) :]

    return own


class Placed(dict[str, Any]):
    """An object that was made of what a caller sent at ``place``."""

    def __init__(self, place: str, value: Mapping[str, Any]) -> None:
        super().__init__(value)
        self.place = place


def of_chat(body: Mapping[str, Any], patterns: Sequence[tuple[str, str]]) -> Own:
    """Gives places in a chat's messages and tools that are Placed, or within such, their own; then
    each of the ``patterns`` is replaced.
    """
    known = dict(one for name in ("messages", "tools") for one in _placed(name, body.get(name)))

    def own(place: str) -> str:
        inner = place
        while inner and inner not in known:
            inner = inner[: max(inner.rfind("["), inner.rfind("."), 0)]
        found = known.get(inner, "") + place[len(inner) :]
        for pattern, name in patterns:
            found = re.sub(pattern, name, found)
        return found

    return own


def _placed(where: str, values: Any) -> Sequence[tuple[str, str]]:
    found = []
    for number, value in enumerate(values if isinstance(values, list) else ()):
        at = f"{where}[{number}]"
        if isinstance(value, Placed):
            found.append((at, value.place))
        if isinstance(value, dict):
            for name in ("content", "tool_calls"):
                found += _placed(f"{at}.{name}", value.get(name))
    return found
