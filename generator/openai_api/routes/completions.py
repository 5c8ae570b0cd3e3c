"""``/v1/completions``: prompts in, texts out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from generator.openai_api.described import answers
from generator.openai_api.described.operation import EVENTS, Operation
from generator.openai_api.schema import json_body
from generator.openai_api.schema.api import Api, Choice
from generator.openai_api.schema.body import Body
from generator.openai_api.schema.errors import bad_field
from generator.openai_api.schema.json_body import kind_of
from generator.openai_api.schema.logprobs import for_completion
from generator.openai_api.schema.request import (
    GENERATION_FIELDS,
    GenerationRequest,
    TensorValue,
    asked,
    field,
)
from generator.openai_api.triton.catalog import COMPLETION_TASKS

DEFAULT_MAX_TOKENS = 16  # OpenAI's
MAX_PROMPTS = 256
_PROMPT = "a text or a list of texts (token ids are not: a string is needed)"


@json_body.takes(
    anyOf=[
        {"type": "string", "minLength": 1},
        {
            "type": "array",
            "items": {"type": "string", "minLength": 1},
            "minItems": 1,
            "maxItems": MAX_PROMPTS,
        },
    ]
)
def _prompts(name: str, value: Any) -> list[str]:
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list):
        raise bad_field(name, "none" if value is None else kind_of(value), _PROMPT)
    if not 1 <= len(value) <= MAX_PROMPTS:
        raise bad_field(name, f"a list of {len(value)}", f"1 to {MAX_PROMPTS} texts")
    for prompt in value:
        if not isinstance(prompt, str):
            raise bad_field(name, f"a list with {kind_of(prompt)}", _PROMPT)
        if not prompt:
            raise bad_field(name, "an empty text", "a text")
    return value


BODY = Body(
    {
        **GENERATION_FIELDS,
        "prompt": _prompts,
        "echo": json_body.boolean,
        "logprobs": json_body.integer,
    },
    ("model", "prompt"),
)
OPERATION = Operation("Continue texts", answers.Completion, BODY, also=(EVENTS,))


def read(body: Mapping[str, Any]) -> GenerationRequest:
    """What the request asks for. Raises ApiError, 400."""
    BODY.check(body)
    echo = bool(field(body, "echo", json_body.boolean))
    num_logprobs = field(body, "logprobs", json_body.integer)
    if echo and num_logprobs is not None:
        raise bad_field("echo", "true", "false with logprobs (the prompt's are not computed)")
    prompts: list[dict[str, TensorValue]] = [
        {"text_input": prompt, "exclude_input_in_output": not echo}
        for prompt in _prompts("prompt", body.get("prompt"))
    ]
    return asked(body, prompts, _lengths(body), num_logprobs)


def write(choice: Choice) -> dict[str, Any]:
    """An element of ``choices``, whole or of a chunk."""
    logprobs = None
    if choice.positions is not None:
        logprobs = for_completion(choice.positions, choice.num_alternatives, choice.offset)
    return {
        "index": choice.index,
        "text": choice.text,
        "logprobs": logprobs,
        "finish_reason": choice.finish_reason,
    }


def _lengths(body: Mapping[str, Any]) -> dict[str, int]:
    """OpenAI's default length, unless more is asked for at least."""
    if body.get("max_tokens") is not None:
        return {}
    at_least = field(body, "min_tokens", json_body.integer) or 0
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
