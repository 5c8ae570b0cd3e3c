"""What errors call the parts of a request: the names under which its caller sent them."""

from __future__ import annotations

import json
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
_KWARGS = "chat_template_kwargs"
# The options that hold an answer to a form, and vLLM's names of them.
_HOLDING = {"json_schema": "json", "regex": "regex", "choice": "choice", "grammar": "grammar"}
# ``temperature: got -1``, ``messages[0].content: got 1``, ``text_input and messages: both given``
HEAD = re.compile(
    rf"(?:({_OBJECT}): (?={_PLACE}(?: and {_PLACE})?: ))?({_PLACE})(?: and ({_PLACE}))?(?=: )"
)


def renamed(known: Mapping[str, str]) -> Own:
    """Renames the longest known beginning of a place, and what has a point within the rest."""

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
    """``own`` gives a place its caller's name; ``advice`` replaces words of models' errors."""

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
        """Names for a caller to whom ``own`` gives the names of these."""
        return replace(self, own=lambda place: own(self.own(place)))


def top(place: str) -> str:
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


def sent_names(body: Any, parameters: Mapping[str, Any], held_at: str, *, calls: bool) -> Names:
    """Names of the fields of ``body``: ``parameters`` are what became of it, ``held_at`` is where
    its response_format has a schema; ``calls`` where the schema is that of tools.
    """

    def has(name: str) -> bool:
        return getattr(body, name, None) is not None

    def first(*names: str) -> str:
        """The first of these fields that the request has, else the last."""
        return next(filter(has, names), names[-1])

    def holding(option: str, name: str) -> str:
        """The field that ``option`` was sent in; ``name`` is vLLM's of it."""
        if option == "json_schema" and calls:
            return "tools"
        if option in ("json_schema", "regex") and held_at:
            return held_at
        if option == "grammar" and has("grammar"):
            return "grammar"
        if has(f"guided_{name}"):
            return f"guided_{name}"
        given = getattr(body, "structured_outputs", None)
        is_object = option == "json_schema" and isinstance(given, dict) and "json_object" in given
        return f"structured_outputs.{'json_object' if is_object else name}"

    def own(place: str) -> str:
        for outer in ("sampling_parameters", _KWARGS):
            inner = place.removeprefix(f"{outer}.")
            if inner != place and (outer != _KWARGS or has(top(inner))):
                place = inner
        if place == "sampling_parameters":  # all of them are too long
            place = max(parameters, key=lambda name: len(json.dumps(parameters[name])))
        prompt = first("prompt", "messages")
        known = {
            **dict.fromkeys(("text_input", "input_ids"), prompt),
            "stop_words": "stop",
            "max_tokens": first("max_completion_tokens", "max_tokens", "min_tokens", prompt),
            "logprobs": first("top_logprobs", "logprobs"),
            "prompt_logprobs": first("prompt_logprobs", "logprobs"),
            "repetition_penalty": first("repetition_penalty", "repeat_penalty"),
            "guided_grammar": first("guided_grammar", "grammar"),
            "lora_name": "model",
            _KWARGS: first(_KWARGS, "reasoning_effort"),
            **{option: holding(option, name) for option, name in _HOLDING.items()},
        }
        return renamed(known)(place)

    return Names(own, {"send text_input": "send it as prompt to /v1/completions"})
