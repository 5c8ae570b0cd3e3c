"""A request of ``/v1/responses`` as the same one of ``/v1/chat/completions``.

Fields that are not named here are chat's, and are checked there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hf_triton.ports.openai.responses.kept import EarlierResponses
from hf_triton.ports.openai.responses.tools import ResponseTools, custom_arguments, read_tools
from hf_triton.ports.openai.schema import json_body
from hf_triton.ports.openai.schema.body import Body
from hf_triton.ports.openai.schema.errors import ApiError, bad_field
from hf_triton.ports.openai.schema.items import Items
from hf_triton.ports.openai.schema.json_body import Check, Json, kind_of, one_of, only, short
from hf_triton.ports.openai.schema.names import Placed
from hf_triton.ports.openai.schema.request import CHAT_FIELDS


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
_EARLIER = "send previous_response_id, or the earlier items in input"
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
    "previous_response_id": json_body.text,
    "conversation": json_body.refused(f"conversations are not kept here; {_EARLIER}"),
    "prompt": json_body.refused("not kept here; send instructions and input"),
    "background": only(False),
    "truncation": only("disabled"),
    "store": json_body.boolean,
    # Of tools that are run here, of which there are none.
    "max_tool_calls": json_body.anything,
    **dict.fromkeys(("prompt_cache_retention", "prompt_cache_options"), json_body.anything),
    "client_metadata": json_body.anything,
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
    (r"^logprobs", "include"),
)
# A response tells of it again.
_TOLD: dict[str, Check] = {"metadata": json_body.json_object}
BODY = Body({**CHAT_FIELDS, **_OF_CHAT, **_TOLD, **_OWN}, ("model", "input"), is_strict=False)
# Of a request to count its tokens.
COUNTED = Body({**BODY.fields, "stream": only(False)}, ("input",), is_strict=False)


@dataclass(frozen=True)
class Request:
    """``chat`` is the body of the same request of chat, ``items`` are its own, and ``told`` is what
    the response repeats.
    """

    chat: Json
    tools: ResponseTools
    items: list[Json]
    told: Json


def read(body: Mapping[str, Any], earlier: EarlierResponses) -> Request:
    """A request, which may go on from what is kept of ``earlier`` ones. Raises ApiError, 400."""
    body = BODY.check(body)
    _check_reasoning(body)
    tools = read_tools(body.get("tools") or [])
    items = _items(body.get("input"), earlier)
    chat = {name: value for name, value in body.items() if name not in _OWN}
    chat["messages"] = _messages(body, items, tools, earlier)
    chat["tools"] = tools.functions
    chat["tool_choice"] = tools.choice(body.get("tool_choice"))
    chat["max_completion_tokens"] = body.get("max_output_tokens")
    if (effort := body.get("reasoning", {}).get("effort")) is not None:
        # For a template that takes it.
        kwargs = body.get("chat_template_kwargs", {})
        chat["chat_template_kwargs"] = {"reasoning_effort?": effort, **kwargs}
    chat.update(_format(body))
    chat.update(_logprobs(body))
    told = {**_told(body, tools), "store": earlier.are_kept and body.get("store") is not False}
    return Request(chat, tools, [item for _, item in items], told)


def _told(body: Mapping[str, Any], tools: ResponseTools) -> Json:
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
        "previous_response_id": body.get("previous_response_id"),
        "prompt_cache_key": body.get("prompt_cache_key"),
        "reasoning": {"effort": (body.get("reasoning") or {}).get("effort"), "summary": None},
        "safety_identifier": body.get("safety_identifier"),
        "service_tier": "default",
        "temperature": 1.0 if temperature is None else temperature,
        "text": text if text["format"] else {**text, "format": {"type": "text"}},
        "tool_choice": body.get("tool_choice") or "auto",
        "tools": [{"parameters": None, "strict": None, **one} for one in tools.told],
        "top_logprobs": body.get("top_logprobs") or 0,
        "top_p": body.get("top_p"),
        "truncation": "disabled",
        "user": body.get("user"),
    }


_SUMMARY = one_of("auto", "concise", "detailed")  # what a model thought is told as it is
_REASONING = {
    "effort": json_body.text,
    **dict.fromkeys(("summary", "generate_summary"), _SUMMARY),
    "context": one_of("auto", "current_turn", "all_turns"),  # which the chat template chooses
    "mode": only("standard"),
}


def _check_reasoning(body: Mapping[str, Any]) -> None:
    for name, value in body.get("reasoning", {}).items():
        allowed = _REASONING.get(name)
        if allowed is None:
            raise ApiError(400, f"reasoning: {short(name)}: unknown field", "reasoning")
        if value is not None:
            allowed(f"reasoning.{name}", value)


def _items(given: Any, earlier: EarlierResponses) -> list[tuple[str, Json]]:
    """The items of an input, each with its place; what was referred to in its own."""
    if isinstance(given, str):
        return [("input", {"type": "message", "role": "user", "content": given})]
    listed = [(f"input[{n}]", item) for n, item in enumerate(json_body.json_list("input", given))]
    return [
        (where, earlier.item(where, item.get("id")) if _is_reference(item) else item)
        for where, item in listed
    ]


def _is_reference(item: Json) -> bool:
    kind = item.get("type")
    return kind == "item_reference" or (kind is None and item.keys() <= {"id", "type"})


def _messages(
    body: Mapping[str, Any],
    items: list[tuple[str, Json]],
    tools: ResponseTools,
    earlier: EarlierResponses,
) -> list[Json]:
    messages: list[Json] = []
    if body.get("instructions"):
        system = {"role": "system", "content": body["instructions"]}
        messages.append(Placed("instructions", system))
    previous, name = body.get("previous_response_id"), "previous_response_id"
    before = [(name, item) for item in (earlier.until(previous) if previous else ())]
    for where, item in (*before, *items):
        _add_item(messages, where, item, tools)
    return messages


def _add_item(messages: list[Json], where: str, item: Json, tools: ResponseTools) -> None:
    kind = item.get("type") or "message"
    add = _ITEMS.get(kind) if isinstance(kind, str) else None
    if add is None:
        raise _PARTS.bad_kind(f"{where}.type", kind, ", ".join(sorted(_ITEMS)))
    if kind == "custom_tool_call":
        item = {**item, "arguments": custom_arguments(_PARTS.text(where, item, "input"))}
    if add is _add_call:
        item = {**item, "name": tools.name_of(item)}
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
    **dict.fromkeys(("function_call", "custom_tool_call"), _add_call),
    **dict.fromkeys(("function_call_output", "custom_tool_call_output"), _add_output),
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


def _format(body: Mapping[str, Any]) -> Json:
    """``response_format`` of what ``text`` says."""
    text = body.get("text", {})
    for name, value in text.items():
        if name not in ("format", "verbosity"):
            raise ApiError(400, f"text: {short(name)}: unknown field", "text")
        if name == "verbosity" and value is not None:
            one_of("low", "medium", "high")("text.verbosity", value)
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
