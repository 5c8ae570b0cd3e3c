"""What errors call the parts of a request: what is sent on to a model has names of its own, and a
caller knows those of what they sent.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
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


def renamed(known: Mapping[str, str]) -> Own:
    """Gives places the names in ``known``, of the longest part that they begin with; those that
    begin with a point are of what lies within.
    """

    def own(place: str) -> str:
        begin = place
        while begin and begin not in known:
            begin = begin[: max(begin.rfind("["), begin.rfind("."), 0)]
        rest = place[len(begin) :]
        for name, instead in known.items():
            rest = rest.replace(name, instead) if name[0] == "." else rest
        return known.get(begin, "") + rest

    return own


@dataclass(frozen=True)
class Names:
    """``own`` gives a place its caller's name; ``advice`` are words of models' errors, and what a
    caller can do instead.
    """

    own: Own = renamed({})  # noqa: RUF009, which changes nothing
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
        rest = error.message[head.end() :]
        for words, instead in self.advice.items():
            rest = rest.replace(words, instead)
        return replace(error, message=" and ".join(places) + rest, param=places[0])

    def then(self, own: Own) -> Names:
        """Those of a caller to whom ``own`` gives the names of these."""
        return replace(self, own=lambda place: own(self.own(place)))


def top(place: str) -> str:
    """The field that a place lies in."""
    return place.partition(".")[0].partition("[")[0]


class Placed(dict[str, Any]):
    """An object that was made of what a caller sent at ``place``."""

    def __init__(self, place: str, value: Mapping[str, Any]) -> None:
        super().__init__(value)
        self.place = place


def places(**lists: Any) -> dict[str, str]:
    """The places of what is Placed in lists, and within their contents and calls."""
    return {at: own for name, values in lists.items() for at, own in _placed(name, values)}


def _placed(where: str, values: Any) -> Iterator[tuple[str, str]]:
    for number, value in enumerate(values if isinstance(values, list) else ()):
        at = f"{where}[{number}]"
        if isinstance(value, Placed):
            yield at, value.place
        if isinstance(value, dict):
            for name in ("content", "tool_calls"):
                yield from _placed(f"{at}.{name}", value.get(name))
