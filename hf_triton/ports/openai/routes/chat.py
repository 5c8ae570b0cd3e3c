"""``/v1/chat/completions``: messages in, the assistant's next one out.

The model's own chat template renders them, tools too; calls that the model then writes are answered
as such.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType, structs

from generator.spec.task_sets import CHAT_TASKS
from hf_triton.ports.openai.openapi_schema.document import EVENTS, Operation
from hf_triton.ports.openai.routes.answers import Choice, Choices, ChoicesWriter
from hf_triton.ports.openai.routes.endpoint import Endpoint
from hf_triton.ports.openai.schema.answers import GenerationUsage
from hf_triton.ports.openai.schema.body import Json, read
from hf_triton.ports.openai.schema.errors import ApiError, bad_field
from hf_triton.ports.openai.schema.functions import NAMES, FunctionChat
from hf_triton.ports.openai.schema.json_body import kind_of
from hf_triton.ports.openai.schema.logprobs import ChatLogprobs
from hf_triton.ports.openai.schema.media import take_media
from hf_triton.ports.openai.schema.names import Names, places, renamed
from hf_triton.ports.openai.schema.request import Chat, GenerationRequest, TensorValue, asked
from hf_triton.ports.openai.schema.tools import read_tools
from hf_triton.ports.openai.tool_calls.read import Call, Function, whole_calls

_USUAL_EFFORT = "medium"  # where nothing is said


class Message(Struct, kw_only=True):
    """The assistant's, or what a chunk adds to it; reasoning under vLLM's two names of it."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType | None = UNSET
    refusal: UnsetType | None = UNSET
    reasoning: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[Call] | UnsetType = UNSET
    function_call: Function | UnsetType = UNSET


class _Rest(Struct, kw_only=True):
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    token_ids: list[int] | UnsetType = UNSET


class ChatChoice(_Rest, kw_only=True):
    """One answer."""

    index: int
    message: Message


class ChatChunkChoice(_Rest, kw_only=True):
    """What a chunk adds to an answer."""

    index: int
    delta: Message


class ChatCompletion(Struct, kw_only=True):
    """All answers."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: GenerationUsage
    prompt_logprobs: Any = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


def read_chat(body: Mapping[str, Any]) -> GenerationRequest:
    """What a request of OpenAI's asks for. Raises ApiError, 400."""
    chat = read(FunctionChat, body)
    if not chat.has_functions:
        return ask(chat)
    found = ask_as(chat.as_tools(), NAMES, {".function": ""})
    return replace(found, tools=found.tools and replace(found.tools, as_functions=True))


def ask(chat: Chat) -> GenerationRequest:
    """What a chat asks for. Raises ApiError, 400."""
    messages, media = take_media(chat.messages)
    prompt: dict[str, TensorValue] = {
        "messages": json.dumps([_with_reasoning(message) for message in messages]),
        "exclude_input_in_output": True,
        "return_chat_format": True,
    }
    parallel = chat.parallel_tool_calls is not False
    tools = read_tools(chat.tools or (), chat.tool_choice, parallel=parallel)
    # Where it holds the answer to calls, there is no text that a response_format could hold.
    constraint = {} if tools is None else tools.constraint()
    if tools is not None:
        prompt["tools"] = json.dumps(tools.listed)
    kwargs = _template_kwargs(chat)
    if kwargs:
        prompt["chat_template_kwargs"] = json.dumps(kwargs)
    read = asked(chat, [prompt], {**_lengths(chat), **constraint}, _num_logprobs(chat))
    return replace(read, tools=tools, media=media, is_chat=True)


def ask_as(chat: Chat, names: Mapping[str, str], parts: Mapping[str, str]) -> GenerationRequest:
    """What a request of another path asks for, which ``chat`` was made of: ``names`` are what
    places here are called there, and ``parts`` what lies within messages and tools. Raises
    ApiError, 400.
    """
    placed = renamed({**places(messages=chat.messages, tools=chat.tools), **parts})
    named = renamed(names)

    def own(place: str) -> str:
        return named(placed(place))

    try:
        found = ask(chat)
    except ApiError as error:
        raise Names(own).of(error) from None
    media = tuple(replace(part, field=own(part.field)) for part in found.media)
    return replace(found, media=media, names=found.names.then(own))


def write(choice: Choice) -> ChatChoice:
    """An element of ``choices``."""
    calls = whole_calls(choice.calls)
    content = choice.text or (None if calls else "")
    message = Message(role="assistant", content=content, refusal=None, **_parts(choice, calls))
    return ChatChoice(index=choice.index, message=message, **_rest(choice))


def write_chunk(choice: Choice) -> ChatChunkChoice:
    """An element of a chunk's ``choices``."""
    delta = Message(content=choice.text or UNSET, **_parts(choice, choice.calls))
    return ChatChunkChoice(index=choice.index, delta=delta, **_rest(choice))


def opening(num_choices: int) -> list[ChatChunkChoice]:
    """Who speaks, for each choice."""
    delta = Message(role="assistant", content="")
    return [ChatChunkChoice(index=index, delta=delta) for index in range(num_choices)]


def _parts(choice: Choice, calls: Sequence[Call]) -> Json:
    """Reasoning and calls, or parts of them, as they were asked for."""
    found: Json = {}
    if choice.reasoning:
        found = dict.fromkeys(("reasoning", "reasoning_content"), choice.reasoning)
    if calls and choice.as_function:
        arguments = "".join(call.function.arguments for call in calls)
        found["function_call"] = structs.replace(calls[0].function, arguments=arguments)
    elif calls:
        found["tool_calls"] = calls
    return found


def _with_reasoning(message: dict[str, Any]) -> dict[str, Any]:
    """An earlier message, whose reasoning has the name that templates know."""
    if isinstance(message.get("reasoning"), str):
        return {"reasoning_content": message["reasoning"], **message}
    return message


def _template_kwargs(chat: Chat) -> dict[str, Any]:
    """What the chat template is to take, with the fields that are OpenAI's and vLLM's own."""
    kwargs = dict(chat.chat_template_kwargs or {})
    if chat.reasoning_effort not in (None, _USUAL_EFFORT):
        # Left out where the template doesn't take it.
        kwargs["reasoning_effort?"] = chat.reasoning_effort
    if chat.add_generation_prompt is False:
        kwargs["add_generation_prompt"] = False
    if chat.continue_final_message:
        kwargs["continue_final_message"] = True
    if kwargs.get("continue_final_message") and chat.add_generation_prompt:
        raise bad_field("continue_final_message", "true", "only with add_generation_prompt false")
    return kwargs


def _rest(choice: Choice) -> Json:
    logprobs = None
    if choice.positions is not None:
        logprobs = ChatLogprobs.of(choice.positions, choice.num_alternatives)
    is_call = choice.as_function and choice.finish_reason == "tool_calls"
    reason = "function_call" if is_call else choice.finish_reason
    return {"logprobs": logprobs, "finish_reason": reason, "token_ids": choice.ids}


def _lengths(chat: Chat) -> dict[str, int]:
    """How long the answer may be: without a number as long as the context is, to which a larger one
    is clamped, for clients send one without knowing the model.
    """
    newer = chat.max_completion_tokens
    older = getattr(chat, "max_tokens", None)
    if newer is None:
        return {"clamp_max_tokens": True}
    if older not in (None, newer):
        allowed = f"the same as max_completion_tokens ({kind_of(newer)}), or one of them"
        raise bad_field("max_tokens", kind_of(older), allowed)
    return {"max_tokens": newer, "clamp_max_tokens": True}


def _num_logprobs(chat: Chat) -> int | None:
    """How many alternatives are wanted; None where no log-probabilities are."""
    if chat.top_logprobs and not chat.logprobs:
        raise bad_field("top_logprobs", kind_of(chat.top_logprobs), "only with logprobs true")
    return (chat.top_logprobs or 0) if chat.logprobs else None


_WRITING = Choices(
    object="chat.completion",
    chunk_object="chat.completion.chunk",
    answer=ChatCompletion,
    write=write,
    write_chunk=write_chunk,
    opening=opening,
    beside=lambda choice: choice.of_prompt,
)
CHAT = Endpoint(
    *("/v1/chat/completions", CHAT_TASKS, "chatcmpl-", read_chat, partial(ChoicesWriter, _WRITING)),
    Operation("Answer a chat", ChatCompletion, FunctionChat, also=(EVENTS,)),
    by_model=True,
)
