"""What a request asks for, whichever of the two APIs it came by: Triton's inputs for each prompt.

Every field is either passed on, known to change nothing, or refused by its name where leaving it
out would change an answer; unknown ones are left out. Which values are allowed is the model's to
say, here only types are checked. docs/openai-api.md lists these tables.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from typing import Any

from generator.spec.runtime_rules import CACHE_SALT, FIXED, OPTIONS
from hf_triton.ports.openai.schema import json_body
from hf_triton.ports.openai.schema.errors import ApiError, bad_field
from hf_triton.ports.openai.schema.json_body import Check, kind_of, only, short
from hf_triton.ports.openai.schema.media import MediaPart
from hf_triton.ports.openai.schema.names import Names
from hf_triton.ports.openai.schema.response_format import constraint
from hf_triton.ports.openai.schema.sent_names import SentNames
from hf_triton.ports.openai.schema.tools import Tools

TensorValue = str | bool | int | float | list[bytes] | tuple[int, ...]

# What becomes part of ``sampling_parameters``: names that OpenAI and vLLM share, and vLLM's own.
SAMPLING: dict[str, Check] = {
    **{
        option.called or name: getattr(json_body, option.kind)
        for name, option in OPTIONS.items()
        if option.in_openai
    },
    # vLLM's names of what an answer is held to; the model looks at them.
    **dict.fromkeys(("structured_outputs", "guided_json"), json_body.anything),
    **dict.fromkeys(("guided_regex", "guided_choice", "guided_grammar"), json_body.anything),
}
# llama.cpp's names of the same.
OTHER_NAMES = {"repeat_penalty": "repetition_penalty", "grammar": "guided_grammar"}
USER = "user"
NARROWEST_TOP_P = 1e-9  # OpenAI's 0, which takes the likeliest token; Triton's 0 is off
# What any request to generate may have.
GENERATION_FIELDS: dict[str, Check] = {
    **SAMPLING,
    "model": json_body.text,
    "stream": json_body.boolean,
    "stream_options": json_body.json_object,
    "timeout_ms": json_body.count,
    "response_format": json_body.json_object,
    CACHE_SALT: json_body.text,
    "best_of": json_body.integer,
    **{name: SAMPLING[known] for name, known in OTHER_NAMES.items()},
    # OpenAI's own bookkeeping: it changes no answer. Whoever asks is passed on all the same, as
    # USER: a canary can be sticky by it.
    **dict.fromkeys((USER, "safety_identifier"), json_body.anything),
    **dict.fromkeys(("metadata", "store", "service_tier"), json_body.ignored),
    **dict.fromkeys(("prompt_cache_key", "prompt_cache_retention"), json_body.ignored),
    # How much OpenAI's models are to say, and how other servers keep theirs.
    **dict.fromkeys(("verbosity", "keep_alive", "num_ctx", "cache_prompt"), json_body.ignored),
    **dict.fromkeys(("repeat_last_n", "id_slot", "timings_per_token"), json_body.ignored),
    # Other servers' names of what must not be left out.
    **dict.fromkeys(
        ("num_predict", "n_predict", "max_new_tokens"), json_body.refused("send max_tokens")
    ),
    **dict.fromkeys(
        ("options", "parameters", "extra_body"),
        json_body.refused("send what is in it beside the other fields"),
    ),
    **dict.fromkeys(("mirostat", "dry_multiplier", "xtc_probability"), only(0, 0.0)),
    **dict.fromkeys(("dynatemp_range", "top_a"), only(0, 0.0)),
    **dict.fromkeys(("typical_p", "tfs_z"), only(1, 1.0)),
    "logits_processors": only([]),
    "parallel_tool_calls": only(True),
    "modalities": only(["text"]),
    "reasoning_effort": only("medium"),
    **dict.fromkeys(("suffix", "audio", "prediction", "functions", "function_call"), only()),
    "web_search_options": only(),
    # vLLM's, and the defaults that its clients send.
    **{name: only(value) for name, value in FIXED.items()},
    **dict.fromkeys(("return_token_ids", "return_tokens_as_token_ids"), only(False)),
    "continue_final_message": only(False),
    "echo": only(False),
    "add_generation_prompt": only(True),
    "length_penalty": only(1.0, 1),
    "prompt_logprobs": only(),
}
# What a request to chat may have.
CHAT_FIELDS: dict[str, Check] = {
    **GENERATION_FIELDS,
    "messages": json_body.json_list,
    "tools": json_body.objects,
    "tool_choice": json_body.text_or_object,
    "parallel_tool_calls": json_body.boolean,
    "chat_template_kwargs": json_body.json_object,
    "reasoning_effort": json_body.text,
    **dict.fromkeys(("add_generation_prompt", "continue_final_message"), json_body.boolean),
    "max_completion_tokens": json_body.integer,
    "logprobs": json_body.boolean,
    "top_logprobs": json_body.integer,
}


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
    n: int
    stream: bool
    include_usage: bool
    continuous_usage: bool
    num_logprobs: int | None
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
    body: Mapping[str, Any],
    prompts: Iterable[Mapping[str, TensorValue]],
    sampling: Mapping[str, Any],
    num_logprobs: int | None,
    *,
    echoes: bool = False,
) -> GenerationRequest:
    """What ``body``, which is checked, asks of each of ``prompts``; ``sampling`` is the API's own
    part of it, and ``echoes`` whether it has the prompt's log-probabilities before the answer's.
    """
    stream = bool(body.get("stream"))
    parameters = {**_sampling(body), **constraint(body), **sampling}
    common: dict[str, TensorValue] = {"stream": stream}
    timeout_ms = body.get("timeout_ms")
    if timeout_ms is not None:
        common["timeout_ms"] = timeout_ms
    if num_logprobs is not None:
        parameters["logprobs"] = num_logprobs
    num_prompt_logprobs = _num_prompt_logprobs(body, stream=stream)
    if echoes or num_prompt_logprobs is not None:
        parameters["prompt_logprobs"] = max(num_prompt_logprobs or 0, num_logprobs or 0)
    common.update(parameters_of(body))
    common["sampling_parameters"] = json.dumps(parameters)
    include_usage, continuous_usage = _usage(body, stream=stream)
    return GenerationRequest(
        model=_model(body),
        inputs=tuple({**prompt, **common} for prompt in prompts),
        n=parameters.get("n", 1),
        stream=stream,
        include_usage=include_usage,
        continuous_usage=include_usage and continuous_usage,
        num_logprobs=num_logprobs,
        num_prompt_logprobs=num_prompt_logprobs,
        echoes=echoes,
        returns_token_ids=bool(body.get("return_token_ids")),
        names=SentNames.of(body, parameters, sampling).names,
    )


def parameters_of(body: Mapping[str, Any]) -> dict[str, str]:
    """What changes no answer, as parameters of Triton's request. Raises ApiError."""
    for name in ("user", "safety_identifier", CACHE_SALT):
        if "\0" in str(body.get(name)):  # at which Triton would take it to end
            raise bad_field(name, "a text with a zero byte in it", "one without")
    user, salt = _user_of(body), body.get(CACHE_SALT)
    return {**({USER: user} if user else {}), **({} if salt is None else {CACHE_SALT: salt})}


def _user_of(body: Mapping[str, Any]) -> str:
    """Whom the request is for, under OpenAI's old or new name of it; empty where it doesn't say."""
    given = (body.get("user"), body.get("safety_identifier"))
    return next((value for value in given if isinstance(value, str) and value), "")


def _sampling(body: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that are sampling parameters, with OpenAI's default temperature."""
    given = {name: body[name] for name in SAMPLING if name in body}
    for name, known in OTHER_NAMES.items():
        if name in body and given.setdefault(known, body[name]) != body[name]:
            raise bad_field(name, "another value", f"the same as {known}, or one of them")
    best_of, n = body.get("best_of"), given.get("n", 1)
    if best_of not in (None, n):
        raise bad_field("best_of", kind_of(best_of), f"the same as n ({kind_of(n)})")
    if given.get("seed", 0) < 0:
        given["seed"] += 2**64  # OpenAI's is signed, Triton's is not
    if given.get("top_p") == 0:
        given["top_p"] = NARROWEST_TOP_P
    return {"temperature": 1, **given}


def _num_prompt_logprobs(body: Mapping[str, Any], *, stream: bool) -> int | None:
    """VLLM's field: how many alternatives to each of the prompt's tokens; None for nothing."""
    num = body.get("prompt_logprobs")
    if num is not None and num < 0:
        raise bad_field("prompt_logprobs", kind_of(num), "0 and more")
    if num is not None and stream:
        raise bad_field("prompt_logprobs", kind_of(num), "only with stream false")
    return None if num is None else int(num)


def _model(body: Mapping[str, Any]) -> str:
    name = body.get("model")
    if not name:
        raise bad_field("model", "none", "the name of a model, see /v1/models")
    return str(name)


def _usage(body: Mapping[str, Any], *, stream: bool) -> tuple[bool, bool]:
    """Whether a stream ends with the usage, and whether each of its events has it."""
    options = body.get("stream_options")
    if options is None:
        return False, False
    if not stream:
        raise bad_field("stream_options", "an object", "only with stream true")
    for name, value in options.items():
        if name not in ("include_usage", "continuous_usage_stats", "include_obfuscation"):
            raise ApiError(400, f"stream_options: {short(name)}: unknown field", "stream_options")
        if value is not None:
            json_body.boolean(f"stream_options.{name}", value)
    if options.get("include_obfuscation"):
        raise bad_field("stream_options.include_obfuscation", "true", "false")
    return bool(options.get("include_usage")), bool(options.get("continuous_usage_stats"))
