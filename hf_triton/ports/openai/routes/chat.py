"""``/v1/chat/completions``: messages in, the assistant's next one out.

The model's own chat template renders them, tools too; calls that the model then writes are answered
as such.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from generator.spec.task_sets import CHAT_TASKS
from hf_triton.ports.openai.openapi_schema import answers
from hf_triton.ports.openai.openapi_schema.operation import EVENTS, Operation
from hf_triton.ports.openai.schema import functions, json_body
from hf_triton.ports.openai.schema.api import Api, Choice
from hf_triton.ports.openai.schema.body import Body
from hf_triton.ports.openai.schema.errors import ApiError, bad_field
from hf_triton.ports.openai.schema.json_body import kind_of
from hf_triton.ports.openai.schema.logprobs import for_chat
from hf_triton.ports.openai.schema.media import take_media
from hf_triton.ports.openai.schema.names import Names, of_chat
from hf_triton.ports.openai.schema.request import (
    CHAT_FIELDS,
    GenerationRequest,
    TensorValue,
    asked,
)
from hf_triton.ports.openai.schema.tools import read_tools
from hf_triton.ports.openai.tool_calls.read import whole_calls

BODY = Body(
    {
        **CHAT_FIELDS,
        **functions.FIELDS,
        "prompt_logprobs": json_body.integer,
        "return_token_ids": json_body.boolean,
    },
    ("model", "messages"),
    is_strict=False,
)
OPERATION = Operation("Answer a chat", answers.ChatCompletion, BODY, also=(EVENTS,))
_USUAL_EFFORT = "medium"  # where nothing is said


def read(body: Mapping[str, Any]) -> GenerationRequest:
    """What the request asks for. Raises ApiError, 400."""
    body = BODY.check(body)
    messages = body.get("messages")
    if messages is None:
        raise bad_field("messages", "none", "a list of objects")
    if functions.are_in(body):
        found = read_as(functions.as_tools(body), functions.NAMES)
        return replace(found, tools=found.tools and replace(found.tools, as_functions=True))
    messages, media = take_media(messages)
    prompt: dict[str, TensorValue] = {
        "messages": json.dumps([_with_reasoning(message) for message in messages]),
        "exclude_input_in_output": True,
        "return_chat_format": True,
    }
    tools = read_tools(body)
    # Where it holds the answer to calls, there is no text that a response_format could hold.
    constraint = {} if tools is None else tools.constraint()
    if tools is not None:
        prompt["tools"] = json.dumps(tools.listed)
    kwargs = _template_kwargs(body)
    if kwargs:
        prompt["chat_template_kwargs"] = json.dumps(kwargs)
    read = asked(body, [prompt], {**_lengths(body), **constraint}, _num_logprobs(body))
    return replace(read, tools=tools, media=media, is_chat=True)


def read_as(body: Mapping[str, Any], names: Sequence[tuple[str, str]]) -> GenerationRequest:
    """What a request of another path asks for, which ``body`` was made of: ``names`` are patterns
    of places here, and what they are called there. Raises ApiError, 400.
    """
    own = of_chat(body, names)
    try:
        found = read(body)
    except ApiError as error:
        raise Names(own).of(error) from None
    media = tuple(replace(part, field=own(part.field)) for part in found.media)
    return replace(found, media=media, names=found.names.then(own))


def write(choice: Choice) -> dict[str, Any]:
    """An element of ``choices``."""
    calls = whole_calls(choice.calls)
    content = choice.text or (None if calls else "")
    message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
    message.update(_reasoning(choice))
    message.update(_calls(choice, calls))
    return {"index": choice.index, "message": message, **_rest(choice)}


def write_chunk(choice: Choice) -> dict[str, Any]:
    """An element of a chunk's ``choices``."""
    delta: dict[str, Any] = _reasoning(choice)
    if choice.text:
        delta["content"] = choice.text
    delta.update(_calls(choice, choice.calls))
    return {"index": choice.index, "delta": delta, **_rest(choice)}


def opening(num_choices: int) -> list[dict[str, Any]]:
    """Who speaks, for each choice."""
    delta = {"role": "assistant", "content": ""}
    return [
        {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
        for index in range(num_choices)
    ]


def _calls(choice: Choice, calls: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Calls, or parts of them, as they were asked for."""
    if not calls or not choice.as_function:
        return {"tool_calls": calls} if calls else {}
    functions = [call["function"] for call in calls]
    arguments = "".join(function["arguments"] for function in functions)
    return {"function_call": {**functions[0], "arguments": arguments}}


def _reasoning(choice: Choice) -> dict[str, Any]:
    """Under vLLM's two names of it."""
    names = ("reasoning", "reasoning_content") if choice.reasoning else ()
    return dict.fromkeys(names, choice.reasoning)


def _with_reasoning(message: dict[str, Any]) -> dict[str, Any]:
    """An earlier message, whose reasoning has the name that templates know."""
    if isinstance(message.get("reasoning"), str):
        return {"reasoning_content": message["reasoning"], **message}
    return message


def _template_kwargs(body: Mapping[str, Any]) -> dict[str, Any]:
    """What the chat template is to take, with the fields that are OpenAI's and vLLM's own."""
    kwargs = dict(body.get("chat_template_kwargs") or {})
    effort = body.get("reasoning_effort")
    if effort not in (None, _USUAL_EFFORT):
        kwargs["reasoning_effort?"] = effort  # left out where the template doesn't take it
    for name, usual in (("add_generation_prompt", True), ("continue_final_message", False)):
        if body.get(name) not in (None, usual):
            kwargs[name] = not usual
    if kwargs.get("continue_final_message") and body.get("add_generation_prompt"):
        raise bad_field("continue_final_message", "true", "only with add_generation_prompt false")
    return kwargs


def _rest(choice: Choice) -> dict[str, Any]:
    logprobs = None
    if choice.positions is not None:
        logprobs = for_chat(choice.positions, choice.num_alternatives)
    is_call = choice.as_function and choice.finish_reason == "tool_calls"
    reason = "function_call" if is_call else choice.finish_reason
    return {"logprobs": logprobs, "finish_reason": reason, **choice.ids()}


def _lengths(body: Mapping[str, Any]) -> dict[str, int]:
    """How long the answer may be: without a number as long as the context is, to which a larger one
    is clamped, for clients send one without knowing the model.
    """
    newer = body.get("max_completion_tokens")
    older = body.get("max_tokens")
    if newer is None:
        return {"clamp_max_tokens": True}
    if older not in (None, newer):
        allowed = f"the same as max_completion_tokens ({kind_of(newer)}), or one of them"
        raise bad_field("max_tokens", kind_of(older), allowed)
    return {"max_tokens": newer, "clamp_max_tokens": True}


def _num_logprobs(body: Mapping[str, Any]) -> int | None:
    """How many alternatives are wanted; None where no log-probabilities are."""
    wanted = bool(body.get("logprobs"))
    num_alternatives = body.get("top_logprobs")
    if num_alternatives and not wanted:
        raise bad_field("top_logprobs", kind_of(num_alternatives), "only with logprobs true")
    return (num_alternatives or 0) if wanted else None


CHAT = Api(
    path="/v1/chat/completions",
    tasks=CHAT_TASKS,
    id_prefix="chatcmpl-",
    object="chat.completion",
    chunk_object="chat.completion.chunk",
    read=read,
    write=write,
    write_chunk=write_chunk,
    opening=opening,
    beside=lambda choice: choice.of_prompt,
)
