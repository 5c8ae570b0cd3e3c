"""Errors of OpenAI's API, Anthropic's and Hugging Face's servers, and what they call the parts of a
request: the names under which its caller sent them. Knows no HTTP library.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

from hf_triton.ports.refusal import RefusedError

_RETRY_AFTER_S = 1
_CODES = {401: "invalid_api_key", 429: "rate_limit_exceeded", 503: "unavailable"}
# A header that the clients of OpenAI and Anthropic obey.
_NO_RETRY = {"x-should-retry": "false"}


# Before the paths of one model, of which TGI and TEI have no more: /models/NAME/generate.
OF_MODEL = "/models/"
_OPENAIS = "/v1/"  # that both servers have too, with OpenAI's errors
_HUBS_PATHS = (
    *("/", "/generate", "/generate_stream", "/info", "/predict", "/similarity"),
    *("/embed", "/embed_sparse", "/embed_all"),
)
# Their statuses by OpenAI's, and their words, by which clients choose an exception.
_HUBS_STATUSES = {400: 422, 500: 424, 503: 429}
_HUBS_TYPES = {422: "validation", 424: "generation", 429: "overloaded", 504: "generation"}
MESSAGES_PATH = "/v1/messages"  # Anthropic's, and the types of its errors
_MESSAGES_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
# ``tools[0].function.name`` of what is sent on to the same of what came.
Own = Callable[[str], str]
_PLACE = r"[a-z_]\w*(?:\[\d+\]|\.\w+)*"
# Objects of a request of Triton's, whose fields are often a caller's own.
_OBJECT = "sampling_parameters|chat_template_kwargs"
_KWARGS = "chat_template_kwargs"
# ``temperature: got -1``, ``messages[0].content: got 1``, ``text_input and messages: both given``
HEAD = re.compile(
    rf"(?:({_OBJECT}): (?={_PLACE}(?: and {_PLACE})?: ))?({_PLACE})(?: and ({_PLACE}))?(?=: )"
)


class ErrorText(Struct):
    message: str
    type: str
    param: str | None
    code: str | None


class Error(Struct):
    error: ErrorText


class HubError(Struct):
    error: str
    error_type: str


class MessageErrorText(Struct):
    type: str
    message: str
    details: Mapping[str, Any] | UnsetType = UNSET


class MessageError(Struct):
    error: MessageErrorText
    request_id: str | UnsetType = UNSET
    type: Literal["error"] = "error"


# Anthropic's tool runner asks for a thread, and by this goes on without one.
_UNTHREADED = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}


@dataclass(eq=False)
class ApiError(Exception):
    """An error for the client; the openai package raises an exception of its own per status."""

    status: int
    message: str
    param: str | None = None
    code: str | None = None
    more_headers: Mapping[str, str] = field(default_factory=dict)
    stays: bool = False  # whether asking again is of no use, though it is a 503

    def body(self) -> Error:
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        code = self.code or _CODES.get(self.status)
        return Error(ErrorText(self.message, kind, self.param, code))

    @property
    def hubs_status(self) -> int:
        return _HUBS_STATUSES.get(self.status, self.status)

    def hubs_body(self) -> HubError:
        names_none = self.param == "model" and self.message.startswith("model: got none")
        hint = f"; name one as model, or ask {OF_MODEL}NAME" if names_none else ""
        return HubError(self.message + hint, _HUBS_TYPES.get(self.hubs_status, "request"))

    def message_body(self, request_id: str | UnsetType = UNSET) -> MessageError:
        kind = _MESSAGES_TYPES.get(self.status, "api_error")
        details = _UNTHREADED if self.param == "thread" else UNSET
        return MessageError(MessageErrorText(kind, self.message, details), request_id)

    def at(self, path: str, request_id: str) -> tuple[int, Struct]:
        """The status and the body that it has at a path."""
        form = error_type(path)
        if form is HubError:
            return self.hubs_status, self.hubs_body()
        return self.status, self.message_body(request_id) if form is MessageError else self.body()

    def headers(self) -> dict[str, str]:
        again = {"Retry-After": str(_RETRY_AFTER_S)} if self.status == 503 else {}
        return {**(_NO_RETRY if self.stays else again), **self.more_headers}


def of_refusal(refusal: RefusedError) -> ApiError:
    where = "Authorization: " if refusal.status == 401 else ""
    return ApiError(refusal.status, f"{where}{refusal.text}", more_headers=refusal.headers)


def error_type(path: str) -> type[Error | HubError | MessageError]:
    """The form that errors have at a path."""
    if f"{path}/".startswith(f"{MESSAGES_PATH}/"):
        return MessageError
    is_hubs = path in _HUBS_PATHS or (path.startswith(OF_MODEL) and _OPENAIS not in path)
    return HubError if is_hubs else Error


def of_field(name: str, text: str, status: int = 400, code: str | None = None) -> ApiError:
    return ApiError(status, f"{name}: {text}", name, code)


def bad_field(name: str, got: str, allowed: str) -> ApiError:
    """A field that is not as it should be; ``got`` never quotes a text."""
    return of_field(name, f"got {got}, allowed: {allowed}")


def model_not_found(name: str, served: list[str]) -> ApiError:
    allowed = ", ".join(served) or "none, no model is ready"
    text = f"'{name[:100]}' does not exist or is not ready, allowed: {allowed}"
    return of_field("model", text, 404, "model_not_found")


def model_is_loading(name: str, why: str) -> ApiError:
    return of_field("model", f"'{name[:100]}' {why}; try again", 503)


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


# Callers' names for a model's field, of which the first that was sent is named.
_SENT_AS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("text_input", "input_ids"), ("prompt", "messages")),
    "stop_words": ("stop",),
    "max_tokens": ("max_completion_tokens", "max_tokens", "min_tokens", "prompt", "messages"),
    "logprobs": ("top_logprobs", "logprobs"),
    "prompt_logprobs": ("logprobs",),
    "repetition_penalty": ("repetition_penalty", "repeat_penalty"),
    "guided_grammar": ("guided_grammar", "grammar"),
    "lora_name": ("model",),
    _KWARGS: (_KWARGS, "reasoning_effort"),
    "json_schema": ("guided_json", "structured_outputs.json_object", "structured_outputs.json"),
    "regex": ("guided_regex", "structured_outputs.regex"),
    "choice": ("guided_choice", "structured_outputs.choice"),
    "grammar": ("grammar", "guided_grammar", "structured_outputs.grammar"),
}


def sent_names(body: Any, parameters: Mapping[str, Any], held_at: str, *, calls: bool) -> Names:
    """Names of the fields of ``body``: ``parameters`` are what became of it, ``held_at`` is where
    its response_format has a schema; ``calls`` where the schema is that of tools.
    """

    def has(name: str) -> bool:
        outer, _, inner = name.partition(".")
        value = getattr(body, outer, None)
        return value is not None and (not inner or (isinstance(value, dict) and inner in value))

    def own(place: str) -> str:
        for outer in ("sampling_parameters", _KWARGS):
            inner = place.removeprefix(f"{outer}.")
            if inner != place and (outer != _KWARGS or has(top(inner))):
                place = inner
        if place == "sampling_parameters":  # all of them are too long
            place = max(parameters, key=lambda name: len(json.dumps(parameters[name])))
        known = {name: next(filter(has, fields), fields[-1]) for name, fields in _SENT_AS.items()}
        known |= dict.fromkeys(("json_schema", "regex"), held_at) if held_at else {}
        return renamed(known | ({"json_schema": "tools"} if calls else {}))(place)

    return Names(own, {"send text_input": "send it as prompt to /v1/completions"})
