"""``/v1/completions``: prompts in, texts out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from generator.spec.task_sets import COMPLETION_TASKS
from hf_triton.ports.openai.openapi_schema import answers
from hf_triton.ports.openai.openapi_schema.operation import EVENTS, Operation
from hf_triton.ports.openai.schema import json_body
from hf_triton.ports.openai.schema.api import Api, Choice
from hf_triton.ports.openai.schema.body import Body
from hf_triton.ports.openai.schema.errors import bad_field
from hf_triton.ports.openai.schema.json_body import kind_of
from hf_triton.ports.openai.schema.logprobs import for_completion
from hf_triton.ports.openai.schema.request import (
    GENERATION_FIELDS,
    GenerationRequest,
    TensorValue,
    asked,
)

DEFAULT_MAX_TOKENS = 16  # OpenAI's
MAX_PROMPTS = 256
_MOST_TOKEN_IDS = 2**31  # what a tensor of them holds
_LONGEST = 2**20  # tokens; no model's context is longer by far
_PROMPT = "a text, a list of token ids, or a list of texts or of such lists"
_IDS = {
    "type": "array",
    "items": {"type": "integer", "minimum": 0, "exclusiveMaximum": _MOST_TOKEN_IDS},
    "minItems": 1,
}
_ONE = {"anyOf": [{"type": "string", "minLength": 1}, _IDS]}


@json_body.takes(
    anyOf=[_ONE, {"type": "array", "items": _ONE, "minItems": 1, "maxItems": MAX_PROMPTS}]
)
def _prompts(name: str, value: Any) -> list[dict[str, TensorValue]]:
    if isinstance(value, str) or (isinstance(value, list) and _are_ids(value)):
        value = [value]
    if not isinstance(value, list):
        raise bad_field(name, kind_of(value), _PROMPT)
    if not 1 <= len(value) <= MAX_PROMPTS:
        raise bad_field(name, f"a list of {len(value)}", f"1 to {MAX_PROMPTS} prompts")
    return [_prompt(name, one) for one in value]


def _prompt(name: str, value: Any) -> dict[str, TensorValue]:
    if isinstance(value, list) and _are_ids(value):
        if len(value) > _LONGEST:
            raise bad_field(name, f"a prompt of {len(value)} tokens", f"at most {_LONGEST}")
        for token_id in (min(value), max(value)):
            if not 0 <= token_id < _MOST_TOKEN_IDS:
                raise bad_field(name, f"token {kind_of(token_id)}", "ids of the model's tokens")
        return {"input_ids": tuple(value)}
    if not isinstance(value, str):
        raise bad_field(name, f"a list with {kind_of(value)}", _PROMPT)
    return {"text_input": json_body.filled(name, value)}


def _are_ids(value: list[Any]) -> bool:
    return bool(value) and all(type(one) is int for one in value)


BODY = Body(
    {
        **GENERATION_FIELDS,
        "prompt": _prompts,
        "echo": json_body.boolean,
        "logprobs": json_body.integer,
        "prompt_logprobs": json_body.integer,
        "return_token_ids": json_body.boolean,
    },
    ("model", "prompt"),
    is_strict=False,
)
OPERATION = Operation("Continue texts", answers.Completion, BODY, also=(EVENTS,))


def read(body: Mapping[str, Any]) -> GenerationRequest:
    """What the request asks for. Raises ApiError, 400."""
    body = BODY.check(body)
    if "prompt" not in body:
        raise bad_field("prompt", "none", _PROMPT)
    echo = bool(body.get("echo"))
    num_logprobs = body.get("logprobs")
    nothing_more = body.get("max_tokens") == 0
    if nothing_more and not echo and body.get("prompt_logprobs") is None:
        raise bad_field("max_tokens", "0", "1 and more, or 0 with echo true or prompt_logprobs")
    echoes = echo and (num_logprobs is not None or nothing_more)
    if echoes and body.get("stream") and body.get("n") not in (None, 1):
        raise bad_field("n", kind_of(body["n"]), "1 with echo, logprobs and stream")
    prompts: list[dict[str, TensorValue]] = [
        {**prompt, "exclude_input_in_output": not echo} for prompt in body["prompt"]
    ]
    return asked(body, prompts, _lengths(body), num_logprobs, echoes=echoes)


def write(choice: Choice) -> dict[str, Any]:
    """An element of ``choices``, whole or of a chunk."""
    logprobs = None
    if choice.positions is not None:
        logprobs = for_completion(choice.positions, choice.num_alternatives)
    return {
        "index": choice.index,
        "text": choice.text,
        "logprobs": logprobs,
        "finish_reason": choice.finish_reason,
        **choice.of_prompt,
        **choice.ids(),
    }


def _lengths(body: Mapping[str, Any]) -> dict[str, int]:
    """OpenAI's default length, unless more is asked for at least."""
    if body.get("max_tokens") is not None:
        return {}
    at_least = body.get("min_tokens") or 0
    return {"max_tokens": max(DEFAULT_MAX_TOKENS, at_least)}


COMPLETIONS = Api(
    path="/v1/completions",
    tasks=COMPLETION_TASKS,
    id_prefix="cmpl-",
    object="text_completion",
    chunk_object="text_completion",
    read=read,
    write=write,
    write_chunk=write,
    opening=lambda _num_choices: (),
)
