"""A request of ``/v1/responses`` as the same one of ``/v1/chat/completions``.

Nothing is stored here: what refers to an earlier response is refused with what to send instead.
Fields that are not named here are chat's, and are checked there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from generator.openai_api.schema import json_body
from generator.openai_api.schema.body import Body
from generator.openai_api.schema.errors import ApiError, bad_field
from generator.openai_api.schema.items import Items
from generator.openai_api.schema.json_body import Check, Json, kind_of, only, short
from generator.openai_api.schema.names import Placed
from generator.openai_api.schema.request import CHAT_FIELDS


def _stored(instead: str) -> Check:
    return json_body.refused(f"nothing is stored here; {instead}")


def _instead(instead: str) -> Check:
    return json_body.refused(f"not a field of this path; send {instead}")


# Chat's names of what has another name here, or no place in a response.
_OF_CHAT = {
    "messages": _instead("input"),
    **dict.fromkeys(("max_tokens", "max_completion_tokens"), _instead("max_output_tokens")),
    "response_format": _instead("text.format"),
    "reasoning_effort": _instead("reasoning.effort"),
    "logprobs": _instead('include ["message.output_text.logprobs"]'),
    **dict.fromkeys(("n", "best_of"), _instead("one request for each choice")),
}
_EARLIER = "send the earlier items in input"
_LOGPROBS = "message.output_text.logprobs"
# What else may be included comes of hosted tools or stored reasoning: there is none to include.
_NOTHING_TO_INCLUDE = (
    *("reasoning.encrypted_content", "file_search_call.results", "web_search_call.results"),
    *("web_search_call.action.sources", "message.input_image.image_url"),
    *("computer_call_output.output.image_url", "code_interpreter_call.outputs"),
)
_OWN: dict[str, Check] = {
    "input": json_body.text_or_objects,
    "instructions": json_body.text,
    "tools": json_body.objects,
    "tool_choice": json_body.text_or_object,
    "text": json_body.json_object,
    "max_output_tokens": json_body.integer,
    "include": json_body.texts,
    "reasoning": json_body.json_object,
    "top_logprobs": json_body.integer,
    **dict.fromkeys(("previous_response_id", "conversation"), _stored(_EARLIER)),
    "prompt": _stored("send instructions and input"),
    "background": only(False),
    "truncation": only("disabled"),
    "store": json_body.boolean,
    "max_tool_calls": json_body.anything,
    "prompt_cache_retention": json_body.anything,
}
# The names of chat's fields in its errors, and what they are here.
NAMES = (
    (r"^instructions\.content", "instructions"),
    (r"^messages$", "input"),
    (r"^input\.content", "input"),
    (r"^tool_choice\.allowed_tools", "tool_choice"),
    (r"\.function\b", ""),
    (r"\.image_url\.url$", ".image_url"),
    (r"^response_format(\.json_schema)?", "text.format"),
    (r"^max_(completion_)?tokens", "max_output_tokens"),
    (r"^reasoning_effort", "reasoning.effort"),
    (r"^logprobs", "include"),
)
# A response tells of it again.
_TOLD: dict[str, Check] = {"metadata": json_body.json_object}
BODY = Body({**CHAT_FIELDS, **_OF_CHAT, **_TOLD, **_OWN}, ("model", "input"))


def as_chat(body: Mapping[str, Any]) -> Json:
    """The body of the same request of chat. Raises ApiError, 400."""
    body = BODY.check(body)
    _check_reasoning(body)
    chat = {name: value for name, value in body.items() if name not in _OWN}
    chat["messages"] = _messages(body)
    if body.get("tools"):
        chat["tools"] = [_tool(f"tools[{n}]", tool) for n, tool in enumerate(body["tools"])]
    chat["tool_choice"] = _tool_choice(body.get("tool_choice"))
    chat["max_completion_tokens"] = body.get("max_output_tokens")
    chat["reasoning_effort"] = body.get("reasoning", {}).get("effort")
    chat.update(_format(body))
    chat.update(_logprobs(body))
    return chat


def told(body: Mapping[str, Any]) -> Json:
    """What a response repeats of its request."""
    text = {"format": {"type": "text"}, **(body.get("text") or {})}
    parallel = body.get("parallel_tool_calls")
    temperature = body.get("temperature")
    return {
        "background": False,
        "instructions": body.get("instructions"),
        "max_output_tokens": body.get("max_output_tokens"),
        "max_tool_calls": body.get("max_tool_calls"),
        "metadata": body.get("metadata") or {},
        "parallel_tool_calls": True if parallel is None else parallel,
        "previous_response_id": None,
        "prompt_cache_key": body.get("prompt_cache_key"),
        "reasoning": {"effort": (body.get("reasoning") or {}).get("effort"), "summary": None},
        "safety_identifier": body.get("safety_identifier"),
        "service_tier": "default",
        "store": False,
        "temperature": 1.0 if temperature is None else temperature,
        "text": text if text["format"] else {**text, "format": {"type": "text"}},
        "tool_choice": body.get("tool_choice") or "auto",
        "tools": [{"parameters": None, "strict": None, **one} for one in body.get("tools") or []],
        "top_logprobs": body.get("top_logprobs") or 0,
        "top_p": body.get("top_p"),
        "truncation": "disabled",
        "user": body.get("user"),
    }


def _check_reasoning(body: Mapping[str, Any]) -> None:
    for name, value in body.get("reasoning", {}).items():
        # Of a summary the model writes none.
        if name != "effort" and value not in (None, "auto"):
            raise bad_field(f"reasoning.{short(name)}", kind_of(value), "null")


def _messages(body: Mapping[str, Any]) -> list[Json]:
    given = body.get("input")
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    messages: list[Json] = []
    if body.get("instructions"):
        system = {"role": "system", "content": body["instructions"]}
        messages.append(Placed("instructions", system))
    for number, item in enumerate(json_body.json_list("input", items)):
        _add_item(messages, "input" if isinstance(given, str) else f"input[{number}]", item)
    return messages


def _add_item(messages: list[Json], where: str, item: Json) -> None:
    kind = item.get("type", "message")
    if kind == "item_reference":
        raise ApiError(400, f"{where}: nothing is stored here; send the item itself", "input")
    add = _ITEMS.get(kind) if isinstance(kind, str) else None
    if add is None:
        raise _PARTS.bad_kind(f"{where}.type", kind, ", ".join(sorted(_ITEMS)))
    add(messages, where, item)


def _add_message(messages: list[Json], where: str, item: Json) -> None:
    role = item.get("role")
    if role not in ("user", "assistant", "system", "developer"):
        raise _PARTS.bad(f"{where}.role", kind_of(role), "user, assistant, system or developer")
    role = "system" if role == "developer" else role
    content = _PARTS.content(_PARTS.listed(f"{where}.content", item.get("content")))
    last = messages[-1] if messages else {}
    if role == last.get("role") == "system" and isinstance(content, str):
        last["content"] = f"{last['content']}\n\n{content}"  # templates take only one
        return
    if role == "assistant" and last.get("content", "") is None and "tool_calls" not in last:
        last["content"] = content  # after its reasoning
        return
    messages.append(Placed(where, {"role": role, "content": content}))


def _add_reasoning(messages: list[Json], where: str, item: Json) -> None:
    """To the assistant's message that begins with it; nobody here can read what is encrypted."""
    parts = _PARTS.listed(f"{where}.content", item.get("content") or [])
    text = "\n".join(_PARTS.text(at, part, "text") for at, part in parts)
    if text:
        message = {"role": "assistant", "content": None, "reasoning_content": text}
        messages.append(Placed(where, message))


def _add_call(messages: list[Json], where: str, item: Json) -> None:
    """To the assistant's message before it, whose call it is."""
    name, arguments, call_id = (
        _PARTS.text(where, item, field) for field in ("name", "arguments", "call_id")
    )
    if not messages or messages[-1]["role"] != "assistant":
        messages.append(Placed(where, {"role": "assistant", "content": None}))
    function = {"name": name, "arguments": arguments}
    call = Placed(where, {"id": call_id, "type": "function", "function": function})
    messages[-1].setdefault("tool_calls", []).append(call)


def _add_output(messages: list[Json], where: str, item: Json) -> None:
    call_id = _PARTS.text(where, item, "call_id")
    content = _PARTS.content(_PARTS.listed(f"{where}.output", item.get("output")))
    message = {"role": "tool", "tool_call_id": call_id, "content": content}
    messages.append(Placed(where, message))


_ITEMS: dict[str, Callable[[list[Json], str, Json], None]] = {
    "message": _add_message,
    "function_call": _add_call,
    "function_call_output": _add_output,
    "reasoning": _add_reasoning,
}


def _part(where: str, part: Json) -> Json:
    kind = part.get("type")
    if kind in ("input_text", "output_text", "text"):
        return {"type": "text", "text": _PARTS.text(where, part, "text")}
    if kind == "refusal":
        return {"type": "text", "text": _PARTS.text(where, part, "refusal")}
    if kind == "input_image" and part.get("image_url") is not None:
        return {"type": "image_url", "image_url": {"url": _PARTS.text(where, part, "image_url")}}
    if kind == "input_audio":
        return {"type": "input_audio", "input_audio": part.get("input_audio")}
    got = short(kind) if isinstance(kind, str) else kind_of(part)
    got += " without image_url" if kind == "input_image" else ""
    allowed = "input_text, output_text, refusal, input_audio, input_image (image_url)"
    raise _PARTS.bad(where, got, allowed)


_PARTS = Items(_part)


def _tool(where: str, tool: Json) -> Json:
    kind = tool.get("type")
    if kind != "function":
        got = f"the hosted tool {short(kind)}" if isinstance(kind, str) else kind_of(kind)
        raise bad_field(f"{where}.type", got, "function")
    names = ("name", "description", "parameters", "strict")
    return {
        "type": "function",
        "function": {name: tool[name] for name in names if tool.get(name) is not None},
    }


def _tool_choice(choice: Any) -> Any:
    """Chat's form of it, where the name lies a level deeper."""
    if not isinstance(choice, dict):
        return choice
    if choice.get("type") == "function":
        return {"type": "function", "function": {"name": choice.get("name")}}
    if choice.get("type") == "allowed_tools":
        tools = json_body.json_list("tool_choice.tools", choice.get("tools"))
        listed = [_tool(f"tool_choice.tools[{n}]", one) for n, one in enumerate(tools)]
        allowed = {"mode": choice.get("mode"), "tools": listed}
        return {"type": "allowed_tools", "allowed_tools": allowed}
    return choice


def _format(body: Mapping[str, Any]) -> Json:
    """``response_format`` of what ``text`` says."""
    text = body.get("text", {})
    for name, value in text.items():
        if name not in ("format", "verbosity"):
            raise ApiError(400, f"text: {short(name)}: unknown field", "text")
        if name == "verbosity" and value not in (None, "medium"):
            raise bad_field("text.verbosity", "another value", '"medium" (nothing else)')
    given = json_body.json_object("text.format", text.get("format") or {})
    if given.get("type") != "json_schema":
        return {"response_format": given} if given else {}
    schema = {name: value for name, value in given.items() if name != "type"}
    return {"response_format": {"type": "json_schema", "json_schema": schema}}


def _logprobs(body: Mapping[str, Any]) -> Json:
    include = body.get("include", [])
    for name in include:
        if name != _LOGPROBS and name not in _NOTHING_TO_INCLUDE:
            raise bad_field("include", "another name", ", ".join((_LOGPROBS, *_NOTHING_TO_INCLUDE)))
    most = body.get("top_logprobs")
    if _LOGPROBS in include:
        return {"logprobs": True, **({} if most is None else {"top_logprobs": most})}
    if most:
        raise bad_field("top_logprobs", kind_of(most), f'only with include ["{_LOGPROBS}"]')
    return {}
