"""``/v1/chat/completions``: messages in, the assistant's next one out.

The model's own chat template renders them. Tools go into the template; what the model then writes
is answered as text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from generator.openai_api import json_body
from generator.openai_api.api import Api, Choice
from generator.openai_api.asked import Asked, TensorValue, asked, check_names, field
from generator.openai_api.errors import bad_field
from generator.openai_api.json_body import kind_of
from generator.openai_api.logprobs import for_chat
from generator.openai_api.tasks import CHAT_TASKS

_OWN_FIELDS = (
    *("messages", "tools", "tool_choice", "chat_template_kwargs"),
    *("max_completion_tokens", "logprobs", "top_logprobs"),
)


def read(body: Mapping[str, Any]) -> Asked:
    """What the request asks for. Raises ApiError, 400."""
    check_names(body, _OWN_FIELDS)
    messages = field(body, "messages", json_body.json_list)
    if messages is None:
        raise bad_field("messages", "none", "a list of objects")
    prompt: dict[str, TensorValue] = {
        "messages": json.dumps(messages),
        "exclude_input_in_output": True,
    }
    tools = _tools(body)
    if tools:
        prompt["tools"] = json.dumps(tools)
    kwargs = field(body, "chat_template_kwargs", json_body.json_object)
    if kwargs:
        prompt["chat_template_kwargs"] = json.dumps(kwargs)
    return asked(body, [prompt], _lengths(body), _num_logprobs(body))


def write(choice: Choice) -> dict[str, Any]:
    """An element of ``choices``."""
    message = {"role": "assistant", "content": choice.text, "refusal": None}
    return {"index": choice.index, "message": message, **_rest(choice)}


def write_chunk(choice: Choice) -> dict[str, Any]:
    """An element of a chunk's ``choices``."""
    delta = {"content": choice.text} if choice.text else {}
    return {"index": choice.index, "delta": delta, **_rest(choice)}


def opening(num_choices: int) -> list[dict[str, Any]]:
    """Who speaks, for each choice."""
    delta = {"role": "assistant", "content": ""}
    return [
        {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
        for index in range(num_choices)
    ]


def _rest(choice: Choice) -> dict[str, Any]:
    logprobs = None
    if choice.places is not None:
        logprobs = for_chat(choice.places, choice.num_alternatives)
    return {"logprobs": logprobs, "finish_reason": choice.finish_reason}


def _tools(body: Mapping[str, Any]) -> list[Any] | None:
    """The tools that the template is to know of: none where ``tool_choice`` is none."""
    tools = body.get("tools")
    tools = None if tools in (None, []) else json_body.json_list("tools", tools)
    choice = body.get("tool_choice")
    if choice not in (None, "none", "auto"):
        raise bad_field("tool_choice", "another value", "none or auto (calls can't be forced)")
    return None if choice == "none" else tools


def _lengths(body: Mapping[str, Any]) -> dict[str, int]:
    newer = field(body, "max_completion_tokens", json_body.integer)
    older = field(body, "max_tokens", json_body.integer)
    if newer is None:
        return {}  # without either, the model's own default_max_tokens
    if older not in (None, newer):
        allowed = f"the same as max_completion_tokens ({kind_of(newer)}), or one of them"
        raise bad_field("max_tokens", kind_of(older), allowed)
    return {"max_tokens": newer}


def _num_logprobs(body: Mapping[str, Any]) -> int | None:
    """How many alternatives are wanted; None where no log-probabilities are."""
    wanted = bool(field(body, "logprobs", json_body.boolean))
    num_alternatives = field(body, "top_logprobs", json_body.integer)
    if num_alternatives is not None and not wanted:
        raise bad_field("top_logprobs", kind_of(num_alternatives), "only with logprobs true")
    return (num_alternatives or 0) if wanted else None


CHAT = Api(
    path="/v1/chat/completions",
    tasks=CHAT_TASKS,
    id_prefix="chatcmpl-",
    object="chat.completion",
    chunk_object="chat.completion.chunk",
    read=read,
    write=write,
    write_chunk=write_chunk,
    opening=opening,
)
