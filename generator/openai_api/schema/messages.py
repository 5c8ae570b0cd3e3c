"""A request of Anthropic's ``/v1/messages`` as the same one of ``/v1/chat/completions``.

Fields that are not named here are chat's, and are checked there.
https://docs.anthropic.com/en/api/messages
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from generator.openai_api.schema import json_body
from generator.openai_api.schema.body import Body
from generator.openai_api.schema.errors import ApiError, bad_field
from generator.openai_api.schema.items import Items
from generator.openai_api.schema.json_body import Check, Json, kind_of, only, short
from generator.openai_api.schema.names import Placed
from generator.openai_api.schema.request import CHAT_FIELDS


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


@json_body.takes(
    type="object",
    properties={"type": {"enum": ["disabled", "adaptive"]}, "display": {}},
    required=["type"],
    additionalProperties=False,
)
def _thinking(name: str, value: Any) -> Any:
    """What a model does anyway, and how it is shown, which it is not."""
    shown = value.items() if isinstance(value, dict) else ()
    rest = {key: one for key, one in shown if key != "display"}
    if rest not in ({"type": "disabled"}, {"type": "adaptive"}):
        allowed = '{"type": "disabled"} or {"type": "adaptive"} (nothing else)'
        raise bad_field(name, "another value", allowed)
    return value


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
    "cache_control": json_body.anything,
    "service_tier": only("auto", "standard_only"),
    "thinking": _thinking,
    "mcp_servers": only([]),
    "speed": only("standard"),
    **dict.fromkeys(("container", "context_management", "inference_geo"), only()),
}
BODY = Body({**CHAT_FIELDS, **_OF_CHAT, **_OWN}, ("model", "messages", "max_tokens"))
# Of a request to count its tokens.
COUNTED = Body({**BODY.fields, "stream": only(False)}, ("model", "messages"))
_USUAL_EFFORT = "high"  # where nothing is said
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
# The names of chat's fields in its errors, and what they are here.
_NAMES = (
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
    if body.get("thinking", {}).get("type") == "disabled":
        chat["reasoning_effort"] = "none"
    if chat["messages"][-1]["role"] == "assistant":
        kwargs = body.get("chat_template_kwargs", {})
        chat["chat_template_kwargs"] = {**kwargs, "continue_final_message": True}
    return chat


def names(body: Mapping[str, Any]) -> Sequence[tuple[str, str]]:
    """Patterns of chat's names in errors, and what they are here."""
    is_off = (body.get("thinking") or {}).get("type") == "disabled"
    effort = "thinking" if is_off else "output_config.effort"
    return ((r"^reasoning_effort", effort), *_NAMES)


def _system(blocks: list[tuple[str, Json]] | None) -> list[Json]:
    if not blocks:
        return []
    content = _ITEMS.content(blocks)
    if not isinstance(content, str):
        raise bad_field("system", "another block", "texts")
    return [Placed("system", {"role": "system", "content": content})]


def _messages(given: Any) -> list[Json]:
    messages: list[Json] = []
    for number, message in enumerate(json_body.json_list("messages", given)):
        where, role = f"messages[{number}]", message.get("role")
        if role not in ("user", "assistant"):
            allowed = "user or assistant; instructions are sent as system"
            raise _ITEMS.bad_kind(f"{where}.role", role, allowed)
        turn = _of_user if role == "user" else _of_assistant
        blocks = _blocks(f"{where}.content", message.get("content"))
        messages += (Placed(where, one) for one in turn(blocks))
    return messages


def _of_user(blocks: list[tuple[str, Json]]) -> list[Json]:
    """The outputs of tools, each a message of its own, and what the user says."""
    results, said = [], []
    for where, block in blocks:
        if block.get("type") != "tool_result":
            said.append((where, block))
            continue
        call_id = _ITEMS.text(where, block, "tool_use_id")
        content = _ITEMS.content(_blocks(f"{where}.content", block.get("content") or ""))
        results.append({"role": "tool", "tool_call_id": call_id, "content": content})
    if said or not results:
        results.append({"role": "user", "content": _ITEMS.content(said)})
    return results


def _of_assistant(blocks: list[tuple[str, Json]]) -> list[Json]:
    said, calls, thoughts = [], [], []
    for at, block in blocks:
        if block.get("type") == "tool_use":
            arguments = json_body.json_object(f"{at}.input", block.get("input"))
            name, call_id = (_ITEMS.text(at, block, field) for field in ("name", "id"))
            function = {"name": name, "arguments": json.dumps(arguments)}
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
    if kind != "image":
        allowed = "text, image, tool_use or tool_result in its place"
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
    if body.get("tools"):
        found["tools"] = [_tool(f"tools[{n}]", tool) for n, tool in enumerate(body["tools"])]
    kind = choice.get("type")
    if kind == "tool":
        found["tool_choice"] = {"type": "function", "function": {"name": choice.get("name")}}
    elif isinstance(kind, str) and kind in _CHOICES:
        found["tool_choice"] = _CHOICES[kind]
    else:
        got = "none" if kind is None else "another value"
        raise bad_field("tool_choice.type", got, "auto, any, tool or none")
    return found


def _tool(where: str, tool: Json) -> Json:
    kind = tool.get("type")
    if kind not in (None, "custom"):
        got = f"the hosted tool {short(kind)}" if isinstance(kind, str) else kind_of(kind)
        raise bad_field(f"{where}.type", got, "custom")
    names = {"name": "name", "description": "description", "parameters": "input_schema"}
    function = {own: tool[name] for own, name in names.items() if tool.get(name) is not None}
    return {"type": "function", "function": function}


def _format(body: Mapping[str, Any]) -> Json:
    """``response_format`` and ``reasoning_effort`` of what ``output_config`` says."""
    config = body.get("output_config", {})
    for name in config:
        if name not in ("format", "effort"):
            raise ApiError(400, f"output_config: {short(name)}: unknown field", "output_config")
    effort = config.get("effort")
    found: Json = {} if effort in (None, _USUAL_EFFORT) else {"reasoning_effort": effort}
    given = json_body.json_object("output_config.format", config.get("format") or {})
    if not given:
        return found
    if given.get("type") != "json_schema":
        raise bad_field("output_config.format.type", kind_of(given.get("type")), "json_schema")
    schema = json_body.json_object("output_config.format.schema", given.get("schema"))
    form = {"type": "json_schema", "json_schema": {"schema": schema}}
    return {**found, "response_format": form}
