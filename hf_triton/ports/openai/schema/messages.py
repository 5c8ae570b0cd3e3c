"""A request of Anthropic's ``/v1/messages`` as the same one of ``/v1/chat/completions``.

Fields that are not named here are chat's, and are checked there.
https://docs.anthropic.com/en/api/messages
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hf_triton.ports.openai.schema import json_body
from hf_triton.ports.openai.schema.body import Body
from hf_triton.ports.openai.schema.errors import ApiError, bad_field
from hf_triton.ports.openai.schema.items import Items
from hf_triton.ports.openai.schema.json_body import Check, Json, kind_of, only, short
from hf_triton.ports.openai.schema.names import Placed
from hf_triton.ports.openai.schema.request import CHAT_FIELDS


def _instead(instead: str) -> Check:
    return json_body.refused(f"not a field of this path; send {instead}")


@json_body.takes(anyOf=[{"type": "string"}, {"type": "array", "items": {"type": "object"}}])
def _blocks(name: str, content: Any) -> list[tuple[str, Json]]:
    """Each with its place."""
    return _ITEMS.listed(name, content)


@json_body.takes(type="array", items={"type": "string"})
def _stops(name: str, value: Any) -> list[str]:
    if not isinstance(value, list):
        raise bad_field(name, kind_of(value), "a list of texts")
    return json_body.texts(name, value)


_THINKING = ("enabled", "adaptive", "between_tools", "disabled")


@json_body.takes(type="object", properties={"type": {"enum": [*_THINKING]}}, required=["type"])
def _thinking(name: str, value: Any) -> Any:
    """Whether to reason. How many tokens at most, and how it is shown, is the model's to decide."""
    json_body.one_of(*_THINKING)(f"{name}.type", json_body.json_object(name, value).get("type"))
    return value


@json_body.takes(type="object")
def _thread(name: str, _: Any) -> None:
    """In words by which Anthropic's packages go on without."""
    told = {"error_code": "thread_unsupported_request", "unsupported": [name]}
    text = f"{name}: no conversation is kept here; send all messages"
    raise ApiError(400, text, name, details=told)


# Chat's names of what has another name here, or no place in an answer.
_OF_CHAT = {
    "stop": _instead("stop_sequences"),
    "max_completion_tokens": _instead("max_tokens"),
    "response_format": _instead("output_config.format"),
    "reasoning_effort": _instead("output_config.effort"),
    "parallel_tool_calls": _instead("tool_choice.disable_parallel_tool_use"),
    "user": _instead("metadata.user_id"),
    "stream_options": _instead("nothing: a stream always tells of its usage"),
    **dict.fromkeys(("n", "best_of"), _instead("one request for each answer")),
    **dict.fromkeys(("logprobs", "top_logprobs"), _instead("them to /v1/chat/completions")),
}
_OWN: dict[str, Check] = {
    "system": _blocks,
    "messages": json_body.json_list,
    "max_tokens": json_body.integer,
    "stop_sequences": _stops,
    "metadata": json_body.json_object,
    "tools": json_body.objects,
    "tool_choice": json_body.json_object,
    "output_config": json_body.json_object,
    "output_format": json_body.json_object,  # what output_config.format was called
    "cache_control": json_body.anything,
    "service_tier": only("auto", "standard_only"),
    "thinking": _thinking,
    "mcp_servers": only([]),
    "speed": only("standard"),
    "thread": _thread,
    # Of what Anthropic's servers drop of a prompt, of whom they bill, of models to fall back on.
    **dict.fromkeys(("context_management", "billing_policy", "diagnostics"), json_body.anything),
    **dict.fromkeys(("fallbacks", "fallback_credit_token"), json_body.anything),
    **dict.fromkeys(("container", "compaction", "inference_geo"), only()),
}
BODY = Body(
    {**CHAT_FIELDS, **_OF_CHAT, **_OWN}, ("model", "messages", "max_tokens"), is_strict=False
)
# Of a request to count its tokens.
COUNTED = Body({**BODY.fields, "stream": only(False)}, ("model", "messages"), is_strict=False)
# What Claude Code writes for Anthropic's books: another text in each conversation, by which none
# would begin like another.
_BILLING = "x-anthropic-billing-header:"
_CHANGES = ("tool_addition", "tool_removal")  # of the tools, within a conversation
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
# Patterns of chat's names in its errors, and what they are here.
NAMES = (
    (r"^system\.content", "system"),
    (r"^(tools\[\d+\])\.function\.parameters", r"\1.input_schema"),
    (r"^(tools\[\d+\])\.function", r"\1"),
    (r"\.function\.arguments", ".input"),
    (r"\.function\.name", ".name"),
    (r"\.image_url(\.url)?$", ".source"),
    (r"^tool_choice\.function", "tool_choice"),
    (r"^parallel_tool_calls", "tool_choice.disable_parallel_tool_use"),
    (r"^response_format(\.json_schema)?", "output_config.format"),
    (r"^max_completion_tokens", "max_tokens"),
    (r"^(chat_template_kwargs\.)?continue_final_message", "messages"),
    (r"^stop$", "stop_sequences"),
    (r"^user$", "metadata.user_id"),
)


def as_chat(body: Mapping[str, Any]) -> Json:
    """The body of the same request of chat. Raises ApiError, 400."""
    body = BODY.check(body)
    chat = {name: value for name, value in body.items() if name not in _OWN}
    chat["messages"] = [*_system(body.get("system")), *_messages(body.get("messages"))]
    if "max_tokens" not in body:
        raise bad_field("max_tokens", "none", "an integer")
    chat["max_completion_tokens"] = body["max_tokens"]
    if body.get("stop_sequences"):
        # With it in the text it shows which one ended the answer.
        chat["stop"] = body["stop_sequences"]
        chat["include_stop_str_in_output"] = True
    if body.get("metadata"):
        chat["user"] = body["metadata"].get("user_id")
    chat.update(_tools(body))
    chat.update(_format(body))
    kwargs = {**_effort(body), **body.get("chat_template_kwargs", {})}
    if chat["messages"][-1]["role"] == "assistant":
        kwargs["continue_final_message"] = True
    return {**chat, "chat_template_kwargs": kwargs}


def _system(blocks: list[tuple[str, Json]] | None) -> list[Json]:
    blocks = [one for one in blocks or () if not str(one[1].get("text")).startswith(_BILLING)]
    if not blocks:
        return []
    content = _ITEMS.content(blocks)
    if not isinstance(content, str):
        raise bad_field("system", "another block", "texts")
    return [Placed("system", {"role": "system", "content": content})]


def _messages(given: Any) -> list[Json]:
    messages: list[Json] = []
    listed = json_body.json_list("messages", given)
    last_user = max((n for n, one in enumerate(listed) if one.get("role") == "user"), default=0)
    for number, message in enumerate(listed):
        where, role = f"messages[{number}]", message.get("role")
        if role not in ("user", "assistant", "system"):
            raise _ITEMS.bad_kind(f"{where}.role", role, "user, assistant or system")
        if role == "system" and (
            message.get("content") is None
            or (message.get("clear_at") == "next_user_message" and number < last_user)
        ):
            continue
        turn = {"user": _of_user, "assistant": _of_assistant, "system": _of_system}[role]
        blocks = _blocks(f"{where}.content", message.get("content"))
        blocks = [one for one in blocks if one[1].get("type") not in _CHANGES]
        messages += (Placed(where, one) for one in turn(blocks))
    return messages


def _of_system(blocks: list[tuple[str, Json]]) -> list[Json]:
    return [{"role": "system", "content": _ITEMS.content(blocks)}] if blocks else []


def _of_user(blocks: list[tuple[str, Json]]) -> list[Json]:
    """The outputs of tools, each a message of its own, and what the user says."""
    results, said = [], []
    for where, block in blocks:
        if block.get("type") != "tool_result":
            said.append((where, block))
            continue
        call_id = _ITEMS.text(where, block, "tool_use_id")
        nothing = "The tool failed." if block.get("is_error") else ""
        content = _ITEMS.content(_blocks(f"{where}.content", block.get("content") or nothing))
        results.append({"role": "tool", "tool_call_id": call_id, "content": content})
    if said or not results:
        results.append({"role": "user", "content": _ITEMS.content(said)})
    return results


def _of_assistant(blocks: list[tuple[str, Json]]) -> list[Json]:
    said, calls, thoughts = [], [], []
    for at, block in blocks:
        if block.get("type") == "tool_use":
            given = block.get("input")
            name, call_id = (_ITEMS.text(at, block, field) for field in ("name", "id"))
            arguments = given if isinstance(given, str) else json.dumps(given or {})
            function = {"name": name, "arguments": arguments}
            calls.append(Placed(at, {"id": call_id, "type": "function", "function": function}))
        elif block.get("type") == "thinking":
            thoughts.append(_ITEMS.text(at, block, "thinking"))
        elif block.get("type") != "redacted_thinking":  # nobody here can read it
            said.append((at, block))
    content = _ITEMS.content(said) if said or not calls else None
    message: Json = {"role": "assistant", "content": content}
    if thoughts:
        message["reasoning_content"] = "\n".join(thoughts)
    return [{**message, "tool_calls": calls} if calls else message]


def _part(where: str, block: Json) -> Json:
    kind = block.get("type")
    if kind == "text":
        return {"type": "text", "text": _ITEMS.text(where, block, "text")}
    if kind == "tool_reference":
        return {"type": "text", "text": _ITEMS.text(where, block, "tool_name")}
    if kind != "image":
        allowed = "text, image, tool_use, tool_result or tool_reference in its place"
        raise _ITEMS.bad_kind(f"{where}.type", kind, allowed)
    source = json_body.json_object(f"{where}.source", block.get("source"))
    if source.get("type") == "base64":
        packed, media_type = (
            _ITEMS.text(f"{where}.source", source, name) for name in ("data", "media_type")
        )
        return {"type": "image_url", "image_url": {"url": f"data:{media_type};base64,{packed}"}}
    if source.get("type") == "url":
        url = _ITEMS.text(f"{where}.source", source, "url")
        return {"type": "image_url", "image_url": {"url": url}}
    raise _ITEMS.bad(f"{where}.source.type", "another type", "base64 or url")


_ITEMS = Items(_part)


def _tools(body: Mapping[str, Any]) -> Json:
    choice = body.get("tool_choice", {"type": "auto"})
    found: Json = {}
    if choice.get("disable_parallel_tool_use"):
        found["parallel_tool_calls"] = False
    kind, name = choice.get("type"), choice.get("name")
    if kind != "tool" and (not isinstance(kind, str) or kind not in _CHOICES):
        got = "none" if kind is None else "another value"
        raise bad_field("tool_choice.type", got, "auto, any, tool or none")
    listed = [(f"tools[{number}]", tool) for number, tool in enumerate(body.get("tools", ()))]
    shown: dict[Any, bool] = {}
    for is_added, changed, tool in _changes(body.get("messages")):
        shown[changed] = is_added
        if tool:
            listed = [one for one in listed if one[1].get("name") != changed]
            listed.append(("messages", tool))
    own = [(at, tool) for at, tool in listed if tool.get("type") in (None, "custom")]
    found["tools"] = [
        Placed(at, _tool(tool))
        for at, tool in own
        if shown.get(
            str(tool.get("name")), not tool.get("defer_loading") or tool.get("name") == name
        )
    ]
    _check_own(listed, own, kind, name)
    is_tool = kind == "tool"
    one = {"type": "function", "function": {"name": name}}
    return {**found, "tool_choice": one if is_tool else _CHOICES[kind]}


def _check_own(listed: Sequence[Any], own: Sequence[Any], kind: str, name: Any) -> None:
    """A tool that Anthropic runs, or knows without a schema, is not offered to a model; so none can
    be what it must call. Raises ApiError, 400.
    """
    for where, tool in listed:
        is_chosen = kind == "tool" and tool.get("name") == name
        if tool.get("type") not in (None, "custom") and (is_chosen or (kind == "any" and not own)):
            got = f"the hosted tool {short(str(tool['type']))}, which must be called"
            raise bad_field(f"{where}.type", got, "custom, or tool_choice auto", "tools")


def _changes(value: Any) -> Iterator[tuple[bool, str, Json | None]]:
    """What messages say of tools: whether one is there from now on, its name, and itself where it
    is none of ``tools``. A search for tools says so of those that it finds.
    """
    if isinstance(value, list):
        for one in value:
            yield from _changes(one)
    elif isinstance(value, dict) and value.get("type") == "tool_reference":
        yield True, str(value.get("tool_name")), None
    elif isinstance(value, dict) and value.get("type") in _CHANGES:
        tool = json_body.json_object("messages", value.get("tool"))
        given = tool.get("definition")
        defined = None if given is None else json_body.json_object("messages", given)
        yield value["type"] == "tool_addition", str((defined or tool).get("name")), defined
    elif isinstance(value, dict):
        yield from _changes(value.get("content"))


def _tool(tool: Json) -> Json:
    names = {"name": "name", "description": "description", "parameters": "input_schema"}
    function = {own: tool[name] for own, name in names.items() if tool.get(name) is not None}
    return {"type": "function", "function": function}


def _effort(body: Mapping[str, Any]) -> Json:
    """How much to reason, for a template that takes it; what the model must not is "none"."""
    kind = body.get("thinking", {}).get("type")
    effort = body.get("output_config", {}).get("effort")
    if kind == "disabled":
        effort = "none"
    elif effort is None and kind == "enabled":
        effort = "medium"
    if effort is None:
        return {}
    return {"reasoning_effort?": json_body.text("output_config.effort", effort)}


def _format(body: Mapping[str, Any]) -> Json:
    """``response_format`` of what ``output_config`` says."""
    config = body.get("output_config", {})
    for name in config:
        if name not in ("format", "effort", "task_budget"):
            raise ApiError(400, f"output_config: {short(name)}: unknown field", "output_config")
    where, given = "output_config.format", config.get("format")
    if given is None:
        where, given = "output_format", body.get("output_format")
    given = json_body.json_object(where, given or {})
    if not given:
        return {}
    if given.get("type") != "json_schema":
        raise bad_field(f"{where}.type", kind_of(given.get("type")), "json_schema")
    schema = json_body.json_object(f"{where}.schema", given.get("schema"))
    return {"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}}
