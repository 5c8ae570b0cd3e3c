"""A request of ``/v1/responses`` as the same one of ``/v1/chat/completions``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Struct

from hf_triton.ports.openai.responses.kept import EarlierResponses
from hf_triton.ports.openai.responses.tools import ResponseTools, custom_arguments, read_tools
from hf_triton.ports.openai.schema.body import (
    Integer,
    Json,
    JsonList,
    also,
    convert,
    instead,
    only,
    refused,
)
from hf_triton.ports.openai.schema.errors import bad_field
from hf_triton.ports.openai.schema.json_body import kind_of
from hf_triton.ports.openai.schema.messages import joined
from hf_triton.ports.openai.schema.names import Placed
from hf_triton.ports.openai.schema.request import Chat, ChatOptions

_EARLIER = "send previous_response_id, or the earlier items in input"
_LOGPROBS = "message.output_text.logprobs"


# What else may be included comes of hosted tools or stored reasoning: there is none to include.
Included = Literal[
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
]


class Reasoning(Struct, kw_only=True, forbid_unknown_fields=True):
    """How to reason; what a model thought is told as it is, in its template's context."""

    effort: str | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None
    context: Literal["auto", "current_turn", "all_turns"] | None = None
    mode: Literal["standard"] | None = None


class TextConfig(Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What an answer is held to."""

    format: Json | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


@also(
    {
        # Chat's names of what has another name here, or no place in a response.
        "messages": instead("input"),
        **dict.fromkeys(("max_tokens", "max_completion_tokens"), instead("max_output_tokens")),
        "response_format": instead("text.format"),
        "reasoning_effort": instead("reasoning.effort"),
        "logprobs": instead('include ["message.output_text.logprobs"]'),
        **dict.fromkeys(("n", "best_of"), instead("one request for each choice")),
        "conversation": refused(f"conversations are not kept here; {_EARLIER}"),
        "prompt": refused("not kept here; send instructions and input"),
        "background": Annotated[Any, only(False)],
        "truncation": Literal["disabled"],
        # Of tools that are run here, of which there are none.
        "max_tool_calls": Any,
        **dict.fromkeys(("prompt_cache_key", "prompt_cache_retention"), Any),
        **dict.fromkeys(("prompt_cache_options", "client_metadata"), Any),
    }
)
class ResponsesRequest(ChatOptions, kw_only=True):
    """OpenAI's."""

    input: str | list[Json]
    instructions: str | None = None
    tools: list[Json] | None = None
    tool_choice: str | Json | None = None
    text: TextConfig | None = None
    max_output_tokens: Integer | None = None
    include: list[Included] | None = None
    reasoning: Reasoning | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    metadata: Json | None = None


class InputTokensRequest(ResponsesRequest, kw_only=True):
    """One whose tokens are counted."""

    model: str | None = None  # type: ignore[assignment]
    stream: Annotated[Any, only(False)] = None


class InputText(Struct, tag="input_text"):
    """Words of the user."""

    text: str


class OutputText(InputText, tag="output_text"):
    """Words of the model."""


class PlainText(InputText, tag="text"):
    """Words, as chat has them."""


class Refusal(Struct, tag="refusal"):
    """What the model would not do."""

    refusal: str


class InputImage(Struct, tag="input_image"):
    """A picture."""

    image_url: str


class InputAudio(Struct, tag="input_audio"):
    """A sound."""

    input_audio: Any = None


Part = InputText | OutputText | PlainText | Refusal | InputImage | InputAudio


class Message(Struct, tag="message"):
    """One turn."""

    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[Part]


class FunctionCall(Struct, tag="function_call", kw_only=True):
    """A call."""

    call_id: str
    name: str
    arguments: str
    namespace: Any = None


class CustomToolCall(Struct, tag="custom_tool_call", kw_only=True):
    """A call whose argument is a text."""

    call_id: str
    name: str
    input: str
    namespace: Any = None


class CallOutput(Struct, tag="function_call_output"):
    """What a call has given."""

    call_id: str
    output: str | list[Part]


class CustomCallOutput(CallOutput, tag="custom_tool_call_output"):
    """The same of a custom tool's."""


class ReasoningText(Struct):
    """A part of it."""

    text: str


class ReasoningItem(Struct, tag="reasoning"):
    """What the model thought; nobody here can read what is encrypted."""

    content: str | list[ReasoningText] | None = None


_Item = Message | FunctionCall | CustomToolCall | CallOutput | CustomCallOutput | ReasoningItem

# Chat's names in its errors, and what they are here.
NAMES = {
    "instructions.content": "instructions",
    **dict.fromkeys(("messages", "input.content"), "input"),
    "tool_choice.allowed_tools": "tool_choice",
    **dict.fromkeys(("response_format", "response_format.json_schema"), "text.format"),
    **dict.fromkeys(("max_tokens", "max_completion_tokens"), "max_output_tokens"),
    "logprobs": "include",
}
PARTS = {".function": "", ".image_url.url": ".image_url"}


@dataclass(frozen=True)
class Request:
    """``chat`` is the same request of chat, ``items`` are its own, ``told`` is what the response
    repeats.
    """

    chat: Chat
    tools: ResponseTools
    items: list[Json]
    told: Json


def as_chat(body: ResponsesRequest, earlier: EarlierResponses) -> Request:
    """A request, which may go on from what is kept of ``earlier`` ones. Raises ApiError, 400."""
    tools = read_tools(body.tools or [])
    items = _items(body.input, earlier)
    form = (body.text and body.text.format) or None
    if form and form.get("type") == "json_schema":
        schema = {name: value for name, value in form.items() if name != "type"}
        form = {"type": "json_schema", "json_schema": schema}
    kwargs = body.chat_template_kwargs
    if body.reasoning and body.reasoning.effort is not None:
        # For a template that takes it.
        kwargs = {"reasoning_effort?": body.reasoning.effort, **(kwargs or {})}
    own = {
        "messages": _messages(body, items, tools, earlier),
        "tools": tools.functions,
        "tool_choice": tools.choice(body.tool_choice),
        "max_completion_tokens": body.max_output_tokens,
        "chat_template_kwargs": kwargs,
        "response_format": form,
        "logprobs": _includes_logprobs(body),
    }
    told = {**_told(body, tools), "store": earlier.are_kept and body.store is not False}
    chat = Chat(**{**body.given(*ChatOptions.__struct_fields__), **own})
    return Request(chat, tools, [item for _, item in items], told)


def _told(body: Any, tools: ResponseTools) -> Json:
    text = msgspec.to_builtins(body.text) if body.text else {}
    effort = body.reasoning and body.reasoning.effort
    return {
        "background": False,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "metadata": body.metadata or {},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "prompt_cache_key": body.prompt_cache_key,
        "reasoning": {"effort": effort, "summary": None},
        "safety_identifier": body.safety_identifier,
        "service_tier": "default",
        "temperature": 1.0 if body.temperature is None else body.temperature,
        "text": {**text, "format": text.get("format") or {"type": "text"}},
        "tool_choice": body.tool_choice or "auto",
        "tools": [{"parameters": None, "strict": None, **one} for one in tools.told],
        "top_logprobs": body.top_logprobs or 0,
        "top_p": body.top_p,
        "truncation": "disabled",
        "user": body.user,
    }


def _items(given: str | list[Json], earlier: EarlierResponses) -> list[tuple[str, Json]]:
    """The items of an input, each with its place; what was referred to in its own."""
    if isinstance(given, str):
        return [("input", {"type": "message", "role": "user", "content": given})]
    listed = [(f"input[{n}]", item) for n, item in enumerate(convert(JsonList, given, "input"))]
    return [
        (where, earlier.item(where, item.get("id")) if _is_reference(item) else item)
        for where, item in listed
    ]


def _is_reference(item: Json) -> bool:
    kind = item.get("type")
    return kind == "item_reference" or (kind is None and item.keys() <= {"id", "type"})


def _messages(
    body: ResponsesRequest,
    items: Sequence[tuple[str, Json]],
    tools: ResponseTools,
    earlier: EarlierResponses,
) -> list[Json]:
    messages: list[Json] = []
    if body.instructions:
        system = {"role": "system", "content": body.instructions}
        messages.append(Placed("instructions", system))
    previous = body.previous_response_id
    before = earlier.until(previous) if previous else ()
    for where, item in (*(("previous_response_id", one) for one in before), *items):
        kind = item.get("type") or "message"
        _add(messages, where, convert(_Item, {**item, "type": kind}, where), tools)
    return messages


def _add(messages: list[Json], where: str, item: Any, tools: ResponseTools) -> None:
    if isinstance(item, Message):
        _add_message(messages, where, item)
    elif isinstance(item, CallOutput):
        content = _content(f"{where}.output", item.output)
        message = {"role": "tool", "tool_call_id": item.call_id, "content": content}
        messages.append(Placed(where, message))
    elif isinstance(item, ReasoningItem):
        parts = item.content or []
        text = parts if isinstance(parts, str) else "\n".join(part.text for part in parts)
        if text:  # the assistant's message begins with it
            begun = {"role": "assistant", "content": None, "reasoning_content": text}
            messages.append(Placed(where, begun))
    else:  # a call, to the assistant's message before it
        is_custom = isinstance(item, CustomToolCall)
        arguments = custom_arguments(item.input) if is_custom else item.arguments
        function = {"name": tools.name_of(item.namespace, item.name), "arguments": arguments}
        if not messages or messages[-1]["role"] != "assistant":
            messages.append(Placed(where, {"role": "assistant", "content": None}))
        call = Placed(where, {"id": item.call_id, "type": "function", "function": function})
        messages[-1].setdefault("tool_calls", []).append(call)


def _add_message(messages: list[Json], where: str, item: Message) -> None:
    role = "system" if item.role == "developer" else item.role
    content = _content(f"{where}.content", item.content)
    last = messages[-1] if messages else {}
    if role == last.get("role") == "system" and isinstance(content, str):
        last["content"] = f"{last['content']}\n\n{content}"  # templates take only one
        return
    if role == "assistant" and last.get("content", "") is None and "tool_calls" not in last:
        last["content"] = content  # after its reasoning
        return
    messages.append(Placed(where, {"role": role, "content": content}))


def _content(where: str, content: str | Sequence[Any]) -> str | list[Json]:
    """A chat's content."""
    if isinstance(content, str):
        return content
    return joined([Placed(f"{where}[{n}]", _part(part)) for n, part in enumerate(content)])


def _part(part: Any) -> Mapping[str, Any]:
    if isinstance(part, InputImage):
        return {"type": "image_url", "image_url": {"url": part.image_url}}
    if isinstance(part, InputAudio):
        return {"type": "input_audio", "input_audio": part.input_audio}
    return {"type": "text", "text": part.refusal if isinstance(part, Refusal) else part.text}


def _includes_logprobs(body: ResponsesRequest) -> bool | None:
    if _LOGPROBS in (body.include or ()):
        return True
    if body.top_logprobs:
        only_with = f'only with include ["{_LOGPROBS}"]'
        raise bad_field("top_logprobs", kind_of(body.top_logprobs), only_with)
    return None
