"""Requests for generation, whichever API they came by, as Triton's inputs for each prompt.

Every field is either passed on, known to change nothing, or refused by its name where leaving it
out would change an answer; unknown ones are left out. Which values are allowed is the model's to
say, here only types are checked. docs/openai-api.md lists these tables.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from typing import Annotated, Any, Literal

from msgspec import Struct

from hf_triton.ports.openai.schema.body import (
    KINDS,
    Count,
    Integer,
    Json,
    JsonList,
    also,
    convert,
    only,
    present,
    read,
    refused,
)
from hf_triton.ports.openai.schema.errors import Names, bad_field, sent_names
from hf_triton.ports.openai.schema.media import MediaPart
from hf_triton.ports.openai.schema.tools import ToolChoice, Tools
from hf_triton.runtime.request.request_parameters import CACHE_SALT
from hf_triton.runtime.request.tensors import kind_of
from hf_triton.text_generation.sequence.request_options import FIXED, OPTIONS

_NAME = "response_format"
# The types, and where each has what it holds an answer to: OpenAI's, ``value`` of TGI and
# huggingface_hub, ``schema`` of llama.cpp.
_KINDS: dict[str, tuple[str, ...]] = {
    "text": (),
    "json_object": ("schema", "value"),
    "json_schema": ("json_schema", "schema", "value"),
    "json": ("value", "schema"),
    "regex": ("value",),
}
ANY_OBJECT = '{"type": "object"}'


class _Format(Struct):
    type: Literal["text", "json_object", "json_schema", "json", "regex"]


class _NamedSchema(Struct, forbid_unknown_fields=True, kw_only=True):
    schema: Json
    name: Any = None
    description: Any = None
    strict: bool | None = None


def constraint(given: Mapping[str, Any] | None) -> tuple[dict[str, str], str]:
    """The sampling parameters of a ``response_format``, and the place of its schema."""
    if given is None:
        return {}, ""
    kind = convert(_Format, given, _NAME).type
    names = _KINDS[kind]
    if not given.keys() <= {"type", *names}:
        raise bad_field(_NAME, "an unknown name in it", ", ".join(sorted(("type", *names))))
    found = [name for name in names if given.get(name) is not None]
    if len(found) > 1:
        raise bad_field(_NAME, " and ".join(found), "one of them")
    if kind == "text":
        return {}, ""
    if kind == "json_object" and not found:
        return {"json_schema": ANY_OBJECT}, _NAME
    [name] = found or names[:1]
    where, value = f"{_NAME}.{name}", given.get(name)
    if kind == "regex":
        return {"regex": convert(str, value, where)}, where
    schema: Json = convert(Json, value, where)
    # OpenAI's object with a name and a schema; TGI's may be the schema itself.
    if kind == "json_schema" and (name == "json_schema" or "schema" in schema) and name != "schema":
        schema, where = read(_NamedSchema, schema, where).schema, f"{where}.schema"
    return {"json_schema": json.dumps(schema, ensure_ascii=False)}, where


TensorValue = str | bool | int | float | list[bytes] | tuple[int, ...]

# Fields of ``sampling_parameters``: names that OpenAI and vLLM share, and vLLM's own.
SAMPLING: dict[str, Any] = {
    **{
        option.called or name: KINDS[option.kind]
        for name, option in OPTIONS.items()
        if option.in_openai
    },
    # vLLM's names of what an answer is held to; the model looks at them.
    **dict.fromkeys(("structured_outputs", "guided_json"), Any),
    **dict.fromkeys(("guided_regex", "guided_choice", "guided_grammar"), Any),
}
# llama.cpp's names of the same.
OTHER_NAMES = {"repeat_penalty": "repetition_penalty", "grammar": "guided_grammar"}
USER = "user"
_AT_TRITON = "Triton's /v2/models/NAME/generate has return_prompt_logprobs and return_token_ids"
NARROWEST_TOP_P = 1e-9  # OpenAI's 0, which takes the likeliest token; Triton's 0 is off


def _only(*values: Any) -> Any:
    return Annotated[Any, only(*values)]


class StreamOptions(Struct, kw_only=True, forbid_unknown_fields=True):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: Annotated[Any, only(False)] = None


@also(
    {
        **SAMPLING,
        **{name: SAMPLING[known] for name, known in OTHER_NAMES.items()},
        # Other servers' names of what must not be left out.
        **dict.fromkeys(("num_predict", "n_predict", "max_new_tokens"), refused("send max_tokens")),
        **dict.fromkeys(
            ("options", "parameters", "extra_body"),
            refused("send what is in it beside the other fields"),
        ),
        **dict.fromkeys(("mirostat", "dry_multiplier", "xtc_probability"), _only(0, 0.0)),
        **dict.fromkeys(("dynatemp_range", "top_a"), _only(0, 0.0)),
        **dict.fromkeys(("typical_p", "tfs_z"), _only(1, 1.0)),
        "logits_processors": _only([]),
        "parallel_tool_calls": _only(True),
        "modalities": _only(["text"]),
        "reasoning_effort": _only("medium"),
        **dict.fromkeys(("suffix", "audio", "prediction"), _only()),
        "functions": refused("of OpenAI's older API; send tools"),
        "function_call": refused("of OpenAI's older API; send tool_choice"),
        "web_search_options": _only(),
        # vLLM's, and the defaults that its clients send.
        **{name: _only(value) for name, value in FIXED.items()},
        "return_token_ids": refused(_AT_TRITON, False),
        "return_tokens_as_token_ids": _only(False),
        **dict.fromkeys(("continue_final_message", "echo"), _only(False)),
        "add_generation_prompt": _only(True),
        "length_penalty": _only(1.0, 1),
        "prompt_logprobs": refused(f"send echo and logprobs to /v1/completions; {_AT_TRITON}"),
    }
)
class Generation(Struct, kw_only=True):
    """Fields of all APIs. ``user`` is passed on: a canary can be sticky by it."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    timeout_ms: Count | None = None
    response_format: Json | None = None
    cache_salt: str | None = None
    best_of: Integer | None = None
    user: Any = None
    safety_identifier: Any = None


class ChatOptions(Generation, kw_only=True):
    chat_template_kwargs: Json | None = None
    parallel_tool_calls: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    top_logprobs: Integer | None = None


class Chat(ChatOptions, kw_only=True):
    messages: JsonList
    tools: list[Json] | None = None
    tool_choice: ToolChoice | None = None
    reasoning_effort: str | None = None
    max_completion_tokens: Integer | None = None
    logprobs: bool | None = None


@dataclass(frozen=True)
class GenerationRequest:
    model: str
    inputs: tuple[dict[str, TensorValue], ...]  # a request of Triton's for each prompt
    n: int = 1  # choices of each prompt
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False  # vLLM's: the usage so far in every event
    num_logprobs: int | None = None  # alternatives; None without log-probabilities
    echoes: bool = False  # the prompt's log-probabilities before the answer's
    tools: Tools | None = None  # those whose calls the answer may hold
    media: tuple[MediaPart, ...] = ()  # the files of a chat
    told: Mapping[str, Any] = dataclass_field(default_factory=dict)  # what an answer repeats of it
    is_chat: bool = False  # the answer is read as its model's family writes it
    names: Names = dataclass_field(default_factory=Names)  # in errors, for the caller

    @property
    def outputs(self) -> list[str]:
        """The model's outputs that are wanted beside those of every answer."""
        wanted = {
            "logprobs": self.num_logprobs is not None,
            "prompt_logprobs": self.echoes,
            "chat_format": self.is_chat,
        }
        return [name for name, is_wanted in wanted.items() if is_wanted]


def asked(
    body: Generation,
    prompts: Iterable[Mapping[str, TensorValue]],
    sampling: Mapping[str, Any],
    num_logprobs: int | None,
    *,
    echoes: bool = False,
) -> GenerationRequest:
    """Reads the request that ``body`` makes of each of ``prompts``. ``sampling`` are parameters of
    the API's own; if it ``echoes``, the prompt's log-probabilities precede the answer's. Raises
    ApiError.
    """
    if not body.model:
        raise bad_field("model", "none", "the name of a model, see /v1/models")
    held, held_at = constraint(body.response_format)
    parameters = {**_sampling(body), **held, **sampling}
    if num_logprobs is not None:
        parameters["logprobs"] = num_logprobs
    if echoes:
        parameters["prompt_logprobs"] = num_logprobs or 0
    common: dict[str, TensorValue] = {
        "stream": bool(body.stream),
        **present(body, "timeout_ms"),
        **parameters_of(body),
        "sampling_parameters": json.dumps(parameters),
    }
    usage = body.stream_options or StreamOptions()
    if body.stream_options and not body.stream:
        raise bad_field("stream_options", "an object", "only with stream true")
    return GenerationRequest(
        model=body.model,
        inputs=tuple({**prompt, **common} for prompt in prompts),
        n=parameters.get("n", 1),
        stream=bool(body.stream),
        include_usage=bool(usage.include_usage),
        continuous_usage=bool(usage.include_usage and usage.continuous_usage_stats),
        num_logprobs=num_logprobs,
        echoes=echoes,
        names=sent_names(body, parameters, held_at, calls="json_schema" in sampling),
    )


def parameters_of(body: Any) -> dict[str, str]:
    """The caller and the cache salt as parameters of Triton's request. Raises ApiError."""
    given = {name: getattr(body, name, None) for name in (USER, "safety_identifier", CACHE_SALT)}
    for name, value in given.items():
        if "\0" in str(value):  # at which Triton would take it to end
            raise bad_field(name, "a text with a zero byte in it", "one without")
    salt = given.pop(CACHE_SALT)
    # The end user, under OpenAI's old or new name of the field.
    users = [value for value in given.values() if isinstance(value, str) and value]
    user = {USER: users[0]} if users else {}
    return {**user, **({} if salt is None else {CACHE_SALT: salt})}


def _sampling(body: Generation) -> dict[str, Any]:
    given = present(body, *SAMPLING)
    for name, value in present(body, *OTHER_NAMES).items():
        known = OTHER_NAMES[name]
        if given.setdefault(known, value) != value:
            raise bad_field(name, "another value", f"the same as {known}, or one of them")
    n = given.get("n", 1)
    if body.best_of not in (None, n):
        raise bad_field("best_of", kind_of(body.best_of), f"the same as n ({kind_of(n)})")
    if given.get("seed", 0) < 0:
        given["seed"] += 2**64  # OpenAI's is signed, Triton's is not
    if given.get("top_p") == 0:
        given["top_p"] = NARROWEST_TOP_P
    return {"temperature": 1, **given}
