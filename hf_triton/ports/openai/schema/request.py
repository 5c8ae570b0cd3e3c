"""What a request asks for, whichever of the APIs it came by: Triton's inputs for each prompt.

Every field is either passed on, known to change nothing, or refused by its name where leaving it
out would change an answer; unknown ones are left out. Which values are allowed is the model's to
say, here only types are checked. docs/openai-api.md lists these tables.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from typing import Annotated, Any

from msgspec import Struct

from generator.spec.runtime_rules import CACHE_SALT, FIXED, OPTIONS
from hf_triton.ports.openai.schema.body import (
    KINDS,
    Count,
    Ignored,
    Integer,
    Json,
    JsonList,
    also,
    only,
    present,
    refused,
)
from hf_triton.ports.openai.schema.errors import bad_field
from hf_triton.ports.openai.schema.json_body import kind_of
from hf_triton.ports.openai.schema.media import MediaPart
from hf_triton.ports.openai.schema.names import Names
from hf_triton.ports.openai.schema.response_format import constraint
from hf_triton.ports.openai.schema.sent_names import SentNames
from hf_triton.ports.openai.schema.tools import ToolChoice, Tools

TensorValue = str | bool | int | float | list[bytes] | tuple[int, ...]

# What becomes part of ``sampling_parameters``: names that OpenAI and vLLM share, and vLLM's own.
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
NARROWEST_TOP_P = 1e-9  # OpenAI's 0, which takes the likeliest token; Triton's 0 is off


def _only(*values: Any) -> Any:
    return Annotated[Any, only(*values)]


class StreamOptions(Struct, kw_only=True, forbid_unknown_fields=True):
    """What a stream tells beside the answer: its usage at the end, or in each event."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: Annotated[Any, only(False)] = None


@also(
    {
        **SAMPLING,
        **{name: SAMPLING[known] for name, known in OTHER_NAMES.items()},
        # OpenAI's own bookkeeping: it changes no answer.
        **dict.fromkeys(("metadata", "store", "service_tier"), Ignored),
        **dict.fromkeys(("prompt_cache_key", "prompt_cache_retention"), Ignored),
        # How much OpenAI's models are to say, and how other servers keep theirs.
        **dict.fromkeys(("verbosity", "keep_alive", "num_ctx", "cache_prompt"), Ignored),
        **dict.fromkeys(("repeat_last_n", "id_slot", "timings_per_token"), Ignored),
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
        **dict.fromkeys(("suffix", "audio", "prediction", "functions", "function_call"), _only()),
        "web_search_options": _only(),
        # vLLM's, and the defaults that its clients send.
        **{name: _only(value) for name, value in FIXED.items()},
        **dict.fromkeys(("return_token_ids", "return_tokens_as_token_ids"), _only(False)),
        **dict.fromkeys(("continue_final_message", "echo"), _only(False)),
        "add_generation_prompt": _only(True),
        "length_penalty": _only(1.0, 1),
        "prompt_logprobs": _only(),
    }
)
class Generation(Struct, kw_only=True):
    """What any request to generate may have. Whoever asks is passed on: a canary can be sticky by
    it.
    """

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    timeout_ms: Count | None = None
    response_format: Json | None = None
    cache_salt: str | None = None
    best_of: Integer | None = None
    user: Any = None
    safety_identifier: Any = None

    def given(self, *names: str) -> dict[str, Any]:
        """Those of these fields that the request has."""
        return present(self, *names)


class ChatOptions(Generation, kw_only=True):
    """What a request to chat may have beside its messages, whichever API's they are."""

    chat_template_kwargs: Json | None = None
    parallel_tool_calls: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    top_logprobs: Integer | None = None


class Chat(ChatOptions, kw_only=True):
    """OpenAI's and vLLM's request to chat; ``tools`` and messages reach a template as they are."""

    messages: JsonList
    tools: list[Json] | None = None
    tool_choice: ToolChoice | None = None
    reasoning_effort: str | None = None
    max_completion_tokens: Integer | None = None
    logprobs: bool | None = None
    prompt_logprobs: Integer | None = None
    return_token_ids: bool | None = None


@dataclass(frozen=True)
class GenerationRequest:
    """``inputs`` has a request of Triton's for each prompt, each with ``n`` choices;
    ``continuous_usage`` is what vLLM calls the usage so far, in every event. ``num_logprobs`` is
    None where no log-probabilities are wanted, else how many alternatives, ``num_prompt_logprobs``
    the same of the prompt's; ``echoes`` where those stand before the answer's own, and
    ``returns_token_ids`` where tokens are told by their ids;
    ``tools`` are those whose calls the answer may hold; ``media`` are the files of a chat;
    ``told`` is what an answer repeats of its request. ``is_chat`` where the answer is read as its
    model's family writes it. ``names`` are those that a model's errors have for its caller.
    """

    model: str
    inputs: tuple[dict[str, TensorValue], ...]
    n: int = 1
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    num_logprobs: int | None = None
    num_prompt_logprobs: int | None = None
    echoes: bool = False
    returns_token_ids: bool = False
    tools: Tools | None = None
    media: tuple[MediaPart, ...] = ()
    told: Mapping[str, Any] = dataclass_field(default_factory=dict)
    is_chat: bool = False
    names: Names = dataclass_field(default_factory=Names)

    @property
    def outputs(self) -> list[str]:
        """The model's outputs that are wanted beside those of every answer."""
        wanted = {
            "logprobs": self.num_logprobs is not None,
            "prompt_logprobs": self.echoes or self.num_prompt_logprobs is not None,
            "chat_format": self.is_chat,
            **dict.fromkeys(("prompt_token_ids", "token_ids"), self.returns_token_ids),
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
    """What ``body`` asks of each of ``prompts``; ``sampling`` is the API's own part of it, and
    ``echoes`` whether it has the prompt's log-probabilities before the answer's. Raises ApiError.
    """
    if not body.model:
        raise bad_field("model", "none", "the name of a model, see /v1/models")
    parameters = {**_sampling(body), **constraint(body.response_format), **sampling}
    if num_logprobs is not None:
        parameters["logprobs"] = num_logprobs
    num_prompt_logprobs = _num_prompt_logprobs(body)
    if echoes or num_prompt_logprobs is not None:
        parameters["prompt_logprobs"] = max(num_prompt_logprobs or 0, num_logprobs or 0)
    common: dict[str, TensorValue] = {
        "stream": bool(body.stream),
        **body.given("timeout_ms"),
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
        num_prompt_logprobs=num_prompt_logprobs,
        echoes=echoes,
        returns_token_ids=bool(getattr(body, "return_token_ids", None)),
        names=SentNames(body, parameters, calls="json_schema" in sampling).names,
    )


def parameters_of(body: Any) -> dict[str, str]:
    """What changes no answer, as parameters of Triton's request. Raises ApiError."""
    given = {name: getattr(body, name, None) for name in (USER, "safety_identifier", CACHE_SALT)}
    for name, value in given.items():
        if "\0" in str(value):  # at which Triton would take it to end
            raise bad_field(name, "a text with a zero byte in it", "one without")
    salt = given.pop(CACHE_SALT)
    # Whom the request is for, under OpenAI's old or new name of it.
    users = [value for value in given.values() if isinstance(value, str) and value]
    user = {USER: users[0]} if users else {}
    return {**user, **({} if salt is None else {CACHE_SALT: salt})}


def _sampling(body: Generation) -> dict[str, Any]:
    """The fields that are sampling parameters, with OpenAI's default temperature."""
    given = body.given(*SAMPLING)
    for name, value in body.given(*OTHER_NAMES).items():
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


def _num_prompt_logprobs(body: Generation) -> int | None:
    """VLLM's field: how many alternatives to each of the prompt's tokens; None for nothing."""
    num: int | None = getattr(body, "prompt_logprobs", None)
    if num is not None and num < 0:
        raise bad_field("prompt_logprobs", kind_of(num), "0 and more")
    if num is not None and body.stream:
        raise bad_field("prompt_logprobs", kind_of(num), "only with stream false")
    return num
