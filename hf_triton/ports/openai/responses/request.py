"""A request of ``/v1/responses`` as the same one of ``/v1/chat/completions``.

Its tools become functions of chat. Those of a namespace are offered beside the others, those that
OpenAI runs itself are left out: nobody runs them here.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Struct

from hf_triton.ports.openai.responses.kept import EarlierResponses
from hf_triton.ports.openai.schema.body import (
    Integer,
    Json,
    JsonList,
    also,
    convert,
    instead,
    only,
    present,
    refused,
    short,
)
from hf_triton.ports.openai.schema.errors import ApiError, Placed, bad_field
from hf_triton.ports.openai.schema.messages import joined
from hf_triton.ports.openai.schema.request import Chat, ChatOptions
from hf_triton.ports.openai.schema.tools import ToolChoice
from hf_triton.runtime.request.tensors import kind_of

_EARLIER = "send previous_response_id, or the earlier items in input"
_LOGPROBS = "message.output_text.logprobs"
# Each has releases, with a date behind the name.
_HOSTED = re.compile(
    "(web_search|file_search|code_interpreter|image_generation|mcp|computer|local_shell|shell"
    "|apply_patch|tool_search|programmatic_tool_calling)(_(use_)?preview)?(_[0-9_]+)?"
)


# All but log-probabilities come from hosted tools or stored reasoning: there is none to include.
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
    effort: str | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None
    context: Literal["auto", "current_turn", "all_turns"] | None = None
    mode: Literal["standard"] | None = None


class TextConfig(Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
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
        # It limits tools that run on the server: there are none.
        "max_tool_calls": Any,
        **dict.fromkeys(("prompt_cache_key", "prompt_cache_retention"), Any),
        **dict.fromkeys(("prompt_cache_options", "client_metadata"), Any),
    }
)
class ResponsesRequest(ChatOptions, kw_only=True):
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


class InputText(Struct, tag="input_text"):
    text: str


class OutputText(InputText, tag="output_text"):
    """Words of the model."""


class PlainText(InputText, tag="text"):
    """Words, as chat has them."""


class Refusal(Struct, tag="refusal"):
    refusal: str


class InputImage(Struct, tag="input_image"):
    image_url: str


class InputAudio(Struct, tag="input_audio"):
    input_audio: Any = None


Part = InputText | OutputText | PlainText | Refusal | InputImage | InputAudio


class Message(Struct, tag="message"):
    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[Part]


class FunctionCall(Struct, tag="function_call", kw_only=True):
    call_id: str
    name: str
    arguments: str
    namespace: Any = None


class CallOutput(Struct, tag="function_call_output"):
    call_id: str
    output: str | list[Part]


class ReasoningText(Struct):
    text: str


class ReasoningItem(Struct, tag="reasoning"):
    """Encrypted content can't be read here. ``content`` becomes one text or None."""

    content: str | list[ReasoningText] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.content, list):
            self.content = "\n".join(part.text for part in self.content)


_Item = Message | FunctionCall | CallOutput | ReasoningItem

# Chat's names in its errors, and what they are here.
NAMES = {
    "instructions.content": "instructions",
    **dict.fromkeys(("messages", "input.content"), "input"),
    **dict.fromkeys(("response_format", "response_format.json_schema"), "text.format"),
    **dict.fromkeys(("max_tokens", "max_completion_tokens"), "max_output_tokens"),
    "logprobs": "include",
}
# Fields that a response repeats as they are.
REPEATED = (
    *("instructions", "max_output_tokens", "max_tool_calls", "previous_response_id"),
    *("prompt_cache_key", "safety_identifier", "top_p", "user"),
)
PARTS = {".function": "", ".image_url.url": ".image_url"}


def as_chat(body: ResponsesRequest, earlier: EarlierResponses) -> tuple[Chat, Json]:
    """The chat; and for its answer the request's items, tools and what a ``response`` repeats."""
    tools = _read_tools(body.tools or [])
    items = _items(body.input, earlier)
    form = (body.text and body.text.format) or None
    if form and form.get("type") == "json_schema":
        schema = {name: value for name, value in form.items() if name != "type"}
        form = {"type": "json_schema", "json_schema": schema}
    kwargs = body.chat_template_kwargs
    if body.reasoning and body.reasoning.effort is not None:
        # For a template that takes it.
        kwargs = {"reasoning_effort?": body.reasoning.effort, **(kwargs or {})}
    logprobs = True if _LOGPROBS in (body.include or ()) else None
    if body.top_logprobs and not logprobs:
        only_with = f'only with include ["{_LOGPROBS}"]'
        raise bad_field("top_logprobs", kind_of(body.top_logprobs), only_with)
    own = {
        "messages": _messages(body, items, tools, earlier),
        "tools": [tool.function() for tool in tools.own],
        "tool_choice": tools.choice(body.tool_choice),
        "max_completion_tokens": body.max_output_tokens,
        "chat_template_kwargs": kwargs,
        "response_format": form,
        "logprobs": logprobs,
    }
    told = {**_told(body), "store": earlier.are_kept and body.store is not False}
    named = {tool.name: tool for tool in tools.own}
    chat = Chat(**{**present(body, *ChatOptions.__struct_fields__), **own})
    return chat, {"response": told, "tools": named, "items": [item for _, item in items]}


def _told(body: Any) -> Json:
    text = msgspec.to_builtins(body.text) if body.text else {}
    effort = body.reasoning and body.reasoning.effort
    tools = [one for one in body.tools or () if not _is_hosted(one.get("type"))]
    return {
        **{name: getattr(body, name) for name in REPEATED},
        "metadata": body.metadata or {},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "reasoning": {"effort": effort, "summary": None},
        "temperature": 1.0 if body.temperature is None else body.temperature,
        "text": {**text, "format": text.get("format") or {"type": "text"}},
        "tool_choice": body.tool_choice or "auto",
        "tools": [{"parameters": None, "strict": None, **one} for one in tools],
        "top_logprobs": body.top_logprobs or 0,
    }


def _items(given: str | list[Json], earlier: EarlierResponses) -> list[tuple[str, Any]]:
    """The items, each with its place; an earlier one in the place of a reference to it."""
    if isinstance(given, str):
        return [("input", Message("user", given))]
    found = []
    for number, item in enumerate(convert(JsonList, given, "input")):
        where, kind = f"input[{number}]", item.get("type")
        if kind == "item_reference" or (kind is None and item.keys() <= {"id", "type"}):
            item = earlier.item(where, item.get("id"))
        found.append((where, _read(where, item)))
    return found


def _read(where: str, item: Json) -> Any:
    return convert(_Item, {**item, "type": item.get("type") or "message"}, where)


def _messages(
    body: ResponsesRequest,
    items: Sequence[tuple[str, Any]],
    tools: ResponseTools,
    earlier: EarlierResponses,
) -> list[Json]:
    messages: list[Json] = []
    if body.instructions:
        system = {"role": "system", "content": body.instructions}
        messages.append(Placed("instructions", system))
    previous = body.previous_response_id
    for one in earlier.until(previous) if previous else ():
        _add(messages, "previous_response_id", _read("previous_response_id", one), tools)
    for where, item in items:
        _add(messages, where, item, tools)
    return messages


def _add(messages: list[Json], where: str, item: Any, tools: ResponseTools) -> None:
    if isinstance(item, Message):
        _add_message(messages, where, item)
    elif isinstance(item, CallOutput):
        content = _content(f"{where}.output", item.output)
        message = {"role": "tool", "tool_call_id": item.call_id, "content": content}
        messages.append(Placed(where, message))
    elif isinstance(item, ReasoningItem):
        if item.content:  # the assistant's message begins with it
            begun = {"role": "assistant", "content": None, "reasoning_content": item.content}
            messages.append(Placed(where, begun))
    else:  # a call, to the assistant's message before it
        name = tools.name_of(item.namespace, item.name)
        function = {"name": name, "arguments": item.arguments}
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
    if isinstance(content, str):
        return content
    return joined([Placed(f"{where}[{n}]", _part(part)) for n, part in enumerate(content)])


def _part(part: Any) -> Mapping[str, Any]:
    if isinstance(part, InputImage):
        return {"type": "image_url", "image_url": {"url": part.image_url}}
    if isinstance(part, InputAudio):
        return {"type": "input_audio", "input_audio": part.input_audio}
    return {"type": "text", "text": part.refusal if isinstance(part, Refusal) else part.text}


@dataclass(frozen=True)
class Tool:
    """One of the caller's own, sent at ``place``; a chat calls it ``name``."""

    place: str
    name: str
    namespace: str
    sent: Json

    @property
    def head(self) -> Json:
        inner = {"namespace": self.namespace} if self.namespace else {}
        return {"type": "function_call", "name": self.sent["name"], **inner}

    def function(self) -> Json:
        names = ("description", "parameters", "strict")
        known = {name: self.sent[name] for name in names if self.sent.get(name) is not None}
        return Placed(self.place, {"type": "function", "function": {"name": self.name, **known}})


@dataclass(frozen=True)
class ResponseTools:
    """The caller's ``own``, chat's ``names`` of them by namespace and name, and the kinds of the
    ``hosted`` ones, which are left out.
    """

    own: Sequence[Tool]
    names: Mapping[tuple[str, Any], str]
    hosted: Sequence[str]

    def name_of(self, namespace: Any, name: Any) -> Any:
        """The name in a chat of the tool that a call or a choice names."""
        space = namespace or ""
        texts = isinstance(space, str) and isinstance(name, str)
        return self.names.get((space, name), name) if texts else name

    def choice(self, choice: str | Json | None) -> ToolChoice | None:
        """Chat's form of a ``tool_choice``. Raises ApiError, 400, where it forces a hosted tool."""
        kind = choice.get("type") if isinstance(choice, dict) else choice
        if kind == "required" and self.hosted and not self.own:
            raise _hosted(*self.hosted)
        if isinstance(choice, dict) and _is_hosted(kind):
            raise _hosted(str(kind))
        if isinstance(choice, dict) and kind == "allowed_tools":
            raise bad_field("tool_choice", "allowed_tools", "another choice; send only these tools")
        if isinstance(choice, dict) and kind == "function":
            name = self.name_of(choice.get("namespace"), choice.get("name"))
            choice = {"type": "function", "function": {"name": name}}
        found: ToolChoice | None = convert(ToolChoice | None, choice, "tool_choice")
        return found


def _read_tools(given: Sequence[Json]) -> ResponseTools:
    listed = [one for n, tool in enumerate(given) for one in _flat(f"tools[{n}]", tool)]
    counts = Counter(tool["name"] for _, _, tool in listed)
    own = [
        Tool(
            place,
            f"{space}__{tool['name']}" if space and counts[tool["name"]] > 1 else tool["name"],
            *(space, tool),
        )
        for place, space, tool in listed
    ]
    names = {(tool.namespace, tool.sent["name"]): tool.name for tool in own}
    hosted = [tool["type"] for tool in given if _is_hosted(tool.get("type"))]
    return ResponseTools(own, names, hosted)


def _flat(where: str, tool: Json) -> list[tuple[str, str, Json]]:
    """A tool, or those of a namespace, each with its place and its namespace."""
    kind = tool.get("type")
    if kind == "namespace":
        space = convert(str, tool.get("name"), f"{where}.name")
        inner = convert(JsonList, tool.get("tools"), f"{where}.tools")
        nested = [_flat(f"{where}.tools[{n}]", one) for n, one in enumerate(inner)]
        return [(place, space, one) for found in nested for place, _, one in found]
    if _is_hosted(kind):
        return []
    if kind != "function":
        got = short(kind) if isinstance(kind, str) else kind_of(kind)
        allowed = "function (for a custom tool one that takes a text), namespace or a hosted tool's"
        raise bad_field(f"{where}.type", got, allowed)
    convert(str, tool.get("name"), f"{where}.name")
    return [(where, "", tool)]


def _is_hosted(kind: Any) -> bool:
    return isinstance(kind, str) and _HOSTED.fullmatch(kind) is not None


def _hosted(*kinds: str) -> ApiError:
    got = ", ".join(sorted({*kinds}))
    allowed = "functions, which the client runs; hosted tools are not run here"
    return bad_field("tool_choice", f"a call of {got}", allowed)
