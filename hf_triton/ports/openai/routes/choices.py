"""``/v1/chat/completions`` and ``/v1/completions``: answers that are lists of choices.

A model's own chat template renders messages, tools too; calls that the model then writes are
answered as such.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Annotated, Any, ClassVar, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, structs

from generator.spec.task_sets import CHAT_TASKS, COMPLETION_TASKS
from hf_triton.ports.openai.openapi import EVENTS, Operation
from hf_triton.ports.openai.routes.answers import (
    Answer,
    Choice,
    Endpoint,
    GenerationUsage,
    Writer,
    sse,
)
from hf_triton.ports.openai.schema.body import Filled, Integer, Json, present, read
from hf_triton.ports.openai.schema.errors import ApiError, Names, bad_field, places, renamed
from hf_triton.ports.openai.schema.logprobs import ChatLogprobs, TextLogprobs
from hf_triton.ports.openai.schema.media import element_names, take_media
from hf_triton.ports.openai.schema.request import (
    Chat,
    Generation,
    GenerationRequest,
    TensorValue,
    asked,
)
from hf_triton.ports.openai.schema.tools import read_tools
from hf_triton.ports.openai.tool_calls.answer_reader import Call
from hf_triton.runtime.request.tensors import kind_of

_DONE = b"data: [DONE]\n\n"
_USUAL_EFFORT = "medium"  # the default
DEFAULT_MAX_TOKENS = 16  # OpenAI's
MAX_PROMPTS = 256
_LONGEST = 2**20  # tokens; no model's context is longer by far
_TokenId = Annotated[int, Meta(ge=0, lt=2**31)]  # what a tensor of them holds
_Ids = Annotated[list[_TokenId], Meta(min_length=1, max_length=_LONGEST)]


class ChoicesWriter(Writer):
    """Writes lists of choices, as OpenAI's chat and completions have them."""

    object: ClassVar[tuple[str, str]]  # of the whole answer, and of a chunk
    answer_type: ClassVar[type[Struct]]
    logprobs_type: ClassVar[type[ChatLogprobs | TextLogprobs]]

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer)
        self._choices: list[Choice] = []
        head = {"id": answer.answer_id, "created": answer.created, "model": self.asked.model}
        self._head: dict[str, Any] = {**head, "object": self.object[0]}
        self._chunk_head: dict[str, Any] = {**head, "object": self.object[1]}
        if self.asked.include_usage:
            # As OpenAI has it: in every chunk, and null in all but the last.
            self._chunk_head["usage"] = None

    def write(self, choice: Choice) -> Struct:
        raise NotImplementedError

    def write_chunk(self, choice: Choice) -> Struct:
        return self.write(choice)

    def beside(self, choice: Choice) -> Json:
        """What a choice has beside what was written."""
        logprobs = None
        if choice.positions is not None:
            logprobs = self.logprobs_type.of(choice.positions, self.asked.num_logprobs or 0)
        return {"index": choice.index, "logprobs": logprobs, "finish_reason": choice.finish_reason}

    def chunk(self, *choices: Struct, **beside: Any) -> dict[str, Any]:
        if self.asked.continuous_usage:
            self._chunk_head["usage"] = self.answer.usage()
        return {**self._chunk_head, "choices": choices, **beside}

    def add(self, new: Choice) -> Sequence[Any]:
        return [self.chunk(self.write_chunk(new))]

    def end(self) -> Sequence[Any]:
        has_usage = self.asked.include_usage
        return [*([self.chunk(usage=self.answer.usage())] if has_usage else []), None]

    def encode(self, event: Any) -> bytes:
        return sse(event) if event else _DONE

    def take(self, added: Sequence[Choice]) -> None:
        self._choices += added  # each is whole: only a stream has several chunks of a prompt

    def result(self) -> Struct:
        choices = sorted(self._choices, key=attrgetter("index"))
        return self.answer_type(
            **self._head,
            choices=[self.write(choice) for choice in choices],
            usage=self.answer.usage(),
        )


class Message(Struct, kw_only=True):
    """The assistant's, or what a chunk adds to it; reasoning has vLLM's two names."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType | None = UNSET
    refusal: UnsetType | None = UNSET
    reasoning: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[Call] | UnsetType = UNSET


class _Choice(Struct, kw_only=True):
    index: int
    finish_reason: str | None = None


class ChatChoice(_Choice, kw_only=True):
    message: Message
    logprobs: ChatLogprobs | None = None


class ChatChunkChoice(_Choice, kw_only=True):
    delta: Message
    logprobs: ChatLogprobs | None = None


class _Whole(Struct, kw_only=True):
    id: str
    created: int
    model: str
    usage: GenerationUsage


class ChatCompletion(_Whole, kw_only=True):
    object: Literal["chat.completion"]
    choices: list[ChatChoice]


def ask_chat(chat: Chat) -> GenerationRequest:
    for number, one in enumerate(chat.messages):
        where = f"messages[{number}]"
        if one.get("role") == "function":
            where = f"{where}.role"
            raise ApiError(400, f"{where}: function is of OpenAI's older API; send tool", where)
        if one.get("function_call") is not None:
            where = f"{where}.function_call"
            raise ApiError(400, f"{where}: of OpenAI's older API; send tool_calls", where)
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
    # An answer of calls alone has no text that a response_format could hold.
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
    """Reads a request of another path, of which ``chat`` was made. ``names`` are that path's names
    of places in a chat, ``parts`` those of parts of messages and tools. Raises ApiError, 400.
    """
    placed = renamed({**places(messages=chat.messages, tools=chat.tools), **parts})
    named = renamed(names)

    def own(place: str) -> str:
        return named(placed(place))

    try:
        found = ask_chat(chat)
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
    answer_type, logprobs_type = ChatCompletion, ChatLogprobs

    def begin(self) -> list[Json]:
        """The role, for each choice."""
        delta = Message(role="assistant", content="")
        choices = (ChatChunkChoice(index=index, delta=delta) for index in range(self.asked.n))
        return list(map(self.chunk, choices))

    def write(self, choice: Choice) -> ChatChoice:
        calls = [structs.replace(call, index=UNSET) for call in choice.calls]
        content = choice.text or (None if calls else "")
        parts = self._parts_of(choice, calls)
        message = Message(role="assistant", content=content, refusal=None, **parts)
        return ChatChoice(message=message, **self.beside(choice))

    def write_chunk(self, choice: Choice) -> ChatChunkChoice:
        delta = Message(content=choice.text or UNSET, **self._parts_of(choice, choice.calls))
        return ChatChunkChoice(delta=delta, **self.beside(choice))

    def _parts_of(self, choice: Choice, calls: Sequence[Call]) -> Json:
        names = ("reasoning", "reasoning_content")
        found: Json = dict.fromkeys(names, choice.reasoning) if choice.reasoning else {}
        return {**found, "tool_calls": calls} if calls else found


CHAT = Endpoint(
    *(("/v1/chat/completions",), CHAT_TASKS, "chatcmpl-"),
    lambda body: ask_chat(read(Chat, body)),
    Operation("Answer a chat", ChatCompletion, Chat, also=(EVENTS,)),
    ChatWriter,
)


class CompletionRequest(Generation, kw_only=True):
    """OpenAI's: ``prompt`` is a text or a list of token ids, or a list of such."""

    prompt: Filled | Annotated[list[_TokenId | Filled | _Ids], Meta(min_length=1)]
    echo: bool | None = None
    logprobs: Integer | None = None

    def prompts(self) -> list[dict[str, TensorValue]]:
        given = [self.prompt] if isinstance(self.prompt, str) else self.prompt
        num_ids = sum(isinstance(one, int) for one in given)
        if 0 < num_ids < len(given) or (not num_ids and len(given) > MAX_PROMPTS):
            allowed = f"a text, a list of token ids, or 1 to {MAX_PROMPTS} texts or such lists"
            raise bad_field("prompt", f"a list of {len(given)}", allowed)
        if num_ids > _LONGEST:
            raise bad_field("prompt", f"a prompt of {num_ids} tokens", f"at most {_LONGEST}")
        listed: Any = [given] if num_ids else given
        return [
            {"text_input": one} if isinstance(one, str) else {"input_ids": tuple(one)}
            for one in listed
        ]


class TextChoice(_Choice, kw_only=True):
    text: str
    logprobs: TextLogprobs | None = None


class Completion(_Whole, kw_only=True):
    object: Literal["text_completion"]
    choices: list[TextChoice]


def read_completion(given: Mapping[str, Any]) -> GenerationRequest:
    body = read(CompletionRequest, given)
    sampling = present(body, "max_tokens", "min_tokens", "n")
    nothing_more = sampling.get("max_tokens") == 0
    if nothing_more and not body.echo:
        raise bad_field("max_tokens", "0", "1 and more, or 0 with echo true")
    echoes = bool(body.echo) and (body.logprobs is not None or nothing_more)
    if echoes and body.stream and sampling.get("n", 1) != 1:
        raise bad_field("n", kind_of(sampling["n"]), "1 with echo, logprobs and stream")
    prompts = [{**prompt, "exclude_input_in_output": not body.echo} for prompt in body.prompts()]
    # OpenAI's default length, unless more is asked for at least.
    at_least = max(DEFAULT_MAX_TOKENS, sampling.get("min_tokens", 0))
    lengths = {} if "max_tokens" in sampling else {"max_tokens": at_least}
    return asked(body, prompts, lengths, body.logprobs, echoes=echoes)


class CompletionWriter(ChoicesWriter):
    object = ("text_completion", "text_completion")
    answer_type, logprobs_type = Completion, TextLogprobs

    def write(self, choice: Choice) -> TextChoice:
        return TextChoice(text=choice.text, **self.beside(choice))


COMPLETIONS = Endpoint(
    *(("/v1/completions",), COMPLETION_TASKS, "cmpl-", read_completion),
    Operation("Continue texts", Completion, CompletionRequest, also=(EVENTS,)),
    CompletionWriter,
)
