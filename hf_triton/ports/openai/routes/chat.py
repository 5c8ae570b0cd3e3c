"""``/v1/chat/completions``: messages in, the assistant's next one out.

The model's own chat template renders them, tools too; calls that the model then writes are answered
as such.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

from generator.spec.task_sets import CHAT_TASKS
from hf_triton.ports.openai.openapi import EVENTS, Operation
from hf_triton.ports.openai.routes.answers import Choice, ChoicesWriter, Endpoint, GenerationUsage
from hf_triton.ports.openai.schema.body import Json, kind_of, read
from hf_triton.ports.openai.schema.errors import ApiError, Names, bad_field, places, renamed
from hf_triton.ports.openai.schema.logprobs import ChatLogprobs
from hf_triton.ports.openai.schema.media import element_names, take_media
from hf_triton.ports.openai.schema.request import Chat, GenerationRequest, TensorValue, asked
from hf_triton.ports.openai.schema.tools import read_tools
from hf_triton.ports.openai.tool_calls.calls import Call, whole_calls

_USUAL_EFFORT = "medium"  # where nothing is said


class Message(Struct, kw_only=True):
    """The assistant's, or what a chunk adds to it; reasoning has vLLM's two names."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType | None = UNSET
    refusal: UnsetType | None = UNSET
    reasoning: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[Call] | UnsetType = UNSET


class _Rest(Struct, kw_only=True):
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    token_ids: list[int] | UnsetType = UNSET


class ChatChoice(_Rest, kw_only=True):
    index: int
    message: Message


class ChatChunkChoice(_Rest, kw_only=True):
    index: int
    delta: Message


class ChatCompletion(Struct, kw_only=True):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: GenerationUsage
    prompt_logprobs: Any = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


def read_chat(body: Mapping[str, Any]) -> GenerationRequest:
    return ask(read(Chat, body))


def ask(chat: Chat) -> GenerationRequest:
    messages, media = take_media(chat.messages)
    # Templates know earlier reasoning by this name.
    messages = [
        {"reasoning_content": one["reasoning"], **one}
        if isinstance(one.get("reasoning"), str)
        else one
        for one in messages
    ]
    prompt: dict[str, TensorValue] = {
        "messages": json.dumps(messages),
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
    if chat.top_logprobs and not chat.logprobs:
        raise bad_field("top_logprobs", kind_of(chat.top_logprobs), "only with logprobs true")
    num_logprobs = (chat.top_logprobs or 0) if chat.logprobs else None
    newer, older = chat.max_completion_tokens, getattr(chat, "max_tokens", None)
    if newer is not None and older not in (None, newer):
        allowed = f"the same as max_completion_tokens ({kind_of(newer)}), or one of them"
        raise bad_field("max_tokens", kind_of(older), allowed)
    # Clients send a length without knowing the model: it is clamped to the context.
    length = {} if newer is None else {"max_tokens": newer}
    sampling = {"clamp_max_tokens": True, **length, **constraint}
    read = asked(chat, [prompt], sampling, num_logprobs)
    names = read.names.then(renamed(element_names(media)))
    return replace(read, tools=tools, media=media, is_chat=True, names=names)


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


def _template_kwargs(chat: Chat) -> dict[str, Any]:
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


class ChatWriter(ChoicesWriter):
    object = ("chat.completion", "chat.completion.chunk")
    answer_type = ChatCompletion

    def begin(self) -> list[Json]:
        """Who speaks, for each choice."""
        delta = Message(role="assistant", content="")
        choices = (ChatChunkChoice(index=index, delta=delta) for index in range(self.asked.n))
        return list(map(self.chunk, choices))

    def write(self, choice: Choice) -> ChatChoice:
        calls = whole_calls(choice.calls)
        content = choice.text or (None if calls else "")
        parts = self._parts_of(choice, calls)
        message = Message(role="assistant", content=content, refusal=None, **parts)
        return ChatChoice(index=choice.index, message=message, **self._rest(choice))

    def write_chunk(self, choice: Choice) -> ChatChunkChoice:
        delta = Message(content=choice.text or UNSET, **self._parts_of(choice, choice.calls))
        return ChatChunkChoice(index=choice.index, delta=delta, **self._rest(choice))

    def beside(self, choice: Choice) -> Json:
        return choice.of_prompt

    def _parts_of(self, choice: Choice, calls: Sequence[Call]) -> Json:
        names = ("reasoning", "reasoning_content")
        found: Json = dict.fromkeys(names, choice.reasoning) if choice.reasoning else {}
        return {**found, "tool_calls": calls} if calls else found

    def _rest(self, choice: Choice) -> Json:
        logprobs = None
        if choice.positions is not None:
            logprobs = ChatLogprobs.of(choice.positions, self.asked.num_logprobs or 0)
        ended = {"finish_reason": choice.finish_reason, "token_ids": choice.ids}
        return {"logprobs": logprobs, **ended}


CHAT = Endpoint(
    *("/v1/chat/completions", CHAT_TASKS, "chatcmpl-", read_chat, ChatWriter),
    Operation("Answer a chat", ChatCompletion, Chat, also=(EVENTS,)),
    by_model=True,
)
