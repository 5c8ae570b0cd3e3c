"""A request of Anthropic's ``/v1/messages`` as the same one of ``/v1/chat/completions``.

https://docs.anthropic.com/en/api/messages
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

from hf_triton.ports.openai.schema.body import (
    Integer,
    Json,
    also,
    instead,
    only,
    present,
    refused,
    short,
)
from hf_triton.ports.openai.schema.errors import Placed, bad_field
from hf_triton.ports.openai.schema.request import Chat, ChatOptions
from hf_triton.ports.openai.schema.tools import Chosen, Named


class Base64(Struct, tag="base64"):
    data: str
    media_type: str

    @property
    def url(self) -> str:
        return f"data:{self.media_type};base64,{self.data}"


class Url(Struct, tag="url"):
    url: str


class Text(Struct, tag="text"):
    text: str


class Image(Struct, tag="image"):
    source: Base64 | Url


class ToolReference(Struct, tag="tool_reference"):
    """A tool that a search for tools has found."""

    text: str = field(name="tool_name")


Part = Text | Image | ToolReference


class ToolUse(Struct, tag="tool_use"):
    id: str
    name: str
    input: Any = None


class ToolResult(Struct, tag="tool_result", kw_only=True):
    tool_use_id: str
    content: str | list[Part] | None = None
    is_error: bool | None = None


class Thinking(Struct, tag="thinking"):
    thinking: str


class RedactedThinking(Struct, tag="redacted_thinking"):
    """Encrypted thinking, which can't be read here."""


class Tool(Struct, kw_only=True):
    """Anthropic runs one that has a type other than custom."""

    name: str | None = None
    type: str | None = None
    description: Any = None
    input_schema: Json | None = None

    @property
    def is_own(self) -> bool:
        return self.type in (None, "custom")

    @property
    def function(self) -> Json:
        found = present(self, "name", "description", "input_schema")
        return {"parameters" if n == "input_schema" else n: value for n, value in found.items()}


Block = Part | ToolUse | ToolResult | Thinking | RedactedThinking


class Message(Struct, kw_only=True):
    role: Literal["user", "assistant", "system"]
    content: str | list[Block] | None = None


class ToolChoice(Struct, kw_only=True):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Format(Struct):
    type: Literal["json_schema"]
    schema: Json


class OutputConfig(Struct, kw_only=True, forbid_unknown_fields=True):
    format: Format | None = None
    effort: Annotated[str, Meta(min_length=1)] | None = None
    task_budget: Any = None


class ThinkingConfig(Struct):
    """The model decides how many tokens it spends, and how they are shown."""

    type: Literal["enabled", "adaptive", "between_tools", "disabled"]


class Metadata(Struct, kw_only=True):
    user_id: Any = None


@also(
    {
        # Chat's names of what has another name here, or no place in an answer.
        "stop": instead("stop_sequences"),
        "max_completion_tokens": instead("max_tokens"),
        "response_format": instead("output_config.format"),
        "reasoning_effort": instead("output_config.effort"),
        "parallel_tool_calls": instead("tool_choice.disable_parallel_tool_use"),
        "user": instead("metadata.user_id"),
        "thread": refused("no conversation is kept here; send all messages"),
        "stream_options": instead("nothing: a stream always reports its usage"),
        **dict.fromkeys(("n", "best_of"), instead("one request for each answer")),
        **dict.fromkeys(("logprobs", "top_logprobs"), instead("them to /v1/chat/completions")),
        "cache_control": Any,
        "service_tier": Literal["auto", "standard_only"],
        "mcp_servers": Annotated[Any, only([])],
        "speed": Literal["standard"],
        # Parts of a prompt to drop, an account to bill, models to fall back on.
        **dict.fromkeys(("context_management", "billing_policy", "diagnostics"), Any),
        **dict.fromkeys(("fallbacks", "fallback_credit_token"), Any),
        **dict.fromkeys(("container", "compaction", "inference_geo"), Annotated[Any, only()]),
    }
)
class CountRequest(ChatOptions, kw_only=True):
    messages: Annotated[list[Message], Meta(min_length=1)]
    system: str | list[Text] | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    max_tokens: Integer | None = None
    stop_sequences: list[str] | None = None
    metadata: Metadata | None = None
    output_config: OutputConfig | None = None
    output_format: Format | None = None  # what output_config.format was called
    thinking: ThinkingConfig | None = None
    stream: Annotated[Any, only(False)] = None


class MessagesRequest(CountRequest, kw_only=True):
    max_tokens: Integer
    stream: bool | None = None


# Claude Code's text for Anthropic's billing: it differs in each conversation, so that no two
# would share a prefix.
_BILLING = "x-anthropic-billing-header:"
_CHOICES: dict[str, Any] = {"auto": "auto", "any": "required", "none": "none"}
# Chat's names in its errors, and what they are here.
NAMES = {
    "system.content": "system",
    "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
    **dict.fromkeys(("response_format", "response_format.json_schema"), "output_config.format"),
    "max_completion_tokens": "max_tokens",
    **dict.fromkeys(
        ("continue_final_message", "chat_template_kwargs.continue_final_message"), "messages"
    ),
    "stop": "stop_sequences",
    "user": "metadata.user_id",
}
PARTS = {
    ".function.parameters": ".input_schema",
    ".function.arguments": ".input",
    ".function": "",
    **dict.fromkeys((".image_url.url", ".image_url"), ".source"),
}


def as_chat(body: CountRequest) -> Chat:
    choice = body.tool_choice or ToolChoice(type="auto")
    if choice.type == "tool" and not choice.name:
        raise bad_field("tool_choice.name", "none", "a text")
    blocks = [Text(body.system)] if isinstance(body.system, str) else body.system or ()
    texts = [one.text for one in blocks if not one.text.startswith(_BILLING)]
    system = Placed("system", {"role": "system", "content": "\n".join(texts)})
    messages = [*([system] if texts else []), *_messages(body.messages)]
    # For a template that takes it; none if the model must not reason.
    kind = body.thinking.type if body.thinking else ""
    effort = body.output_config.effort if body.output_config else None
    effort = {"disabled": "none", "enabled": effort or "medium"}.get(kind, effort)
    kwargs: Json = {"reasoning_effort?": effort} if effort else {}
    kwargs |= body.chat_template_kwargs or {}
    if not messages:
        raise bad_field("messages", "none with a content", "one message or more")
    if messages[-1]["role"] == "assistant":
        kwargs["continue_final_message"] = True
    form = (body.output_config and body.output_config.format) or body.output_format
    own: Json = {
        "messages": messages,
        "max_tokens": None,
        "max_completion_tokens": body.max_tokens,
        "user": body.metadata and body.metadata.user_id,
        "tools": _tools(body, choice),
        "tool_choice": _CHOICES.get(choice.type) or Chosen(Named(choice.name or "")),
        "parallel_tool_calls": False if choice.disable_parallel_tool_use else None,
        "response_format": form and {"type": "json_schema", "json_schema": {"schema": form.schema}},
        "chat_template_kwargs": kwargs,
    }
    if body.stop_sequences:
        # With it in the text it shows which one ended the answer.
        own |= {"stop": body.stop_sequences, "include_stop_str_in_output": True}
    return Chat(**{**present(body, *ChatOptions.__struct_fields__), **own})


def _messages(given: Sequence[Message]) -> list[Json]:
    messages: list[Json] = []
    for number, message in enumerate(given):
        where = f"messages[{number}]"
        if message.role == "system" and message.content is None:
            continue
        if message.content is None:
            raise bad_field(f"{where}.content", "none", "a text or a list of blocks")
        blocks = _listed(f"{where}.content", message.content)
        if message.role == "user":
            messages += (Placed(where, one) for one in _of_user(blocks))
        elif message.role == "assistant":
            messages.append(Placed(where, _of_assistant(blocks)))
        elif blocks:
            messages.append(Placed(where, {"role": "system", "content": _content(blocks)}))
    return messages


_Blocks = list[tuple[str, Any]]


def _listed(where: str, content: str | Sequence[Any]) -> _Blocks:
    if isinstance(content, str):
        return [(where, Text(content))]
    return [(f"{where}[{number}]", block) for number, block in enumerate(content)]


def _of_user(blocks: _Blocks) -> list[Json]:
    """The outputs of tools, each a message of its own, and what the user says."""
    results = []
    for where, block in blocks:
        if isinstance(block, ToolResult):
            nothing = "The tool failed." if block.is_error else ""
            content = _content(_listed(f"{where}.content", block.content or nothing))
            results.append({"role": "tool", "tool_call_id": block.tool_use_id, "content": content})
    said = [one for one in blocks if not isinstance(one[1], ToolResult)]
    if said or not results:
        results.append({"role": "user", "content": _content(said)})
    return results


def _of_assistant(blocks: _Blocks) -> Json:
    said, calls, thoughts = [], [], []
    for at, block in blocks:
        if isinstance(block, ToolUse):
            given = block.input
            arguments = given if isinstance(given, str) else json.dumps(given or {})
            function = {"name": block.name, "arguments": arguments}
            calls.append(Placed(at, {"id": block.id, "type": "function", "function": function}))
        elif isinstance(block, Thinking):
            thoughts.append(block.thinking)
        elif not isinstance(block, RedactedThinking):
            said.append((at, block))
    message: Json = {"role": "assistant", "content": _content(said) if said or not calls else None}
    if thoughts:
        message["reasoning_content"] = "\n".join(thoughts)
    return {**message, "tool_calls": calls} if calls else message


def _content(blocks: _Blocks) -> str | list[Json]:
    return joined([Placed(where, _part(where, block)) for where, block in blocks])


def joined(parts: list[Json]) -> str | list[Json]:
    """Parts of a chat's content as one text where all of them are texts."""
    if all(part["type"] == "text" for part in parts):
        return "\n".join(part["text"] for part in parts)
    return parts


def _part(where: str, block: Any) -> Json:
    if isinstance(block, Image):
        return {"type": "image_url", "image_url": {"url": block.source.url}}
    if isinstance(block, Text | ToolReference):
        return {"type": "text", "text": block.text}
    allowed = "text, image, tool_use, tool_result or tool_reference in its place"
    raise bad_field(f"{where}.type", block.__struct_config__.tag, allowed)


def _tools(body: CountRequest, choice: ToolChoice) -> list[Json]:
    listed = [(f"tools[{number}]", tool) for number, tool in enumerate(body.tools or ())]
    own = [(at, tool) for at, tool in listed if tool.is_own]
    for where, tool in listed:
        # A tool that Anthropic runs, or knows without a schema, is not offered to a model; so none
        # can be what it must call.
        is_chosen = choice.type == "tool" and tool.name == choice.name
        if not tool.is_own and (is_chosen or (choice.type == "any" and not own)):
            got = f"the hosted tool {short(tool.type or '')}, which must be called"
            raise bad_field(f"{where}.type", got, "custom, or tool_choice auto")
    return [Placed(at, {"type": "function", "function": tool.function}) for at, tool in own]
