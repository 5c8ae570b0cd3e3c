"""``/v1/messages``: Anthropic's API. The request is chat's, and so are its answer's texts and
calls; here they are written as Anthropic's content blocks, events and errors.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from generator.spec.task_sets import CHAT_TASKS
from hf_triton.ports.openai.openapi_schema import answers
from hf_triton.ports.openai.openapi_schema.operation import EVENTS, Operation
from hf_triton.ports.openai.routes import chat
from hf_triton.ports.openai.routes.answers import Answer
from hf_triton.ports.openai.routes.endpoint import Endpoint, TypedEvents, named
from hf_triton.ports.openai.routes.tokens import Told, of_chat
from hf_triton.ports.openai.schema import messages
from hf_triton.ports.openai.schema.api import Choice
from hf_triton.ports.openai.schema.errors import ApiError
from hf_triton.ports.openai.schema.request import GenerationRequest

Json = dict[str, Any]
PATH = "/v1/messages"
_PING: Json = {"type": "ping"}
_REASONS = {"length": "max_tokens", "tool_calls": "tool_use"}
_ERRORS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def read(body: Mapping[str, Any]) -> GenerationRequest:
    """What the request asks for. Raises ApiError, 400."""
    stop = body.get("stop_sequences") or []
    asked = chat.read_as(messages.as_chat(body), messages.NAMES)
    return replace(asked, told={"stop_sequences": stop, "max_tokens": body.get("max_tokens", 0)})


def read_count(body: Mapping[str, Any]) -> GenerationRequest:
    """The same prompt, and nothing that an answer is held to. Raises ApiError, 400."""
    messages.COUNTED.check(body)
    choice = body.get("tool_choice")
    is_none = isinstance(choice, dict) and choice.get("type") == "none"
    prompt = {name: body[name] for name in body if name not in ("tool_choice", "output_config")}
    asked = {**prompt, "tool_choice": choice if is_none else None, "max_tokens": 1}
    return of_chat(read(asked))


def is_under(path: str) -> bool:
    """Whether a path is Anthropic's."""
    return path == PATH or path.startswith(f"{PATH}/")


def error_body(error: ApiError) -> Json:
    """Anthropic's error object."""
    kind = _ERRORS.get(error.status, "api_error")
    details = {"details": dict(error.details)} if error.details else {}
    return {"type": "error", "error": {"type": kind, "message": error.message, **details}}


class MessageWriter(TypedEvents):
    """Writes one message. A block is open until another begins or the answer ends."""

    alive = _PING

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer)
        self._content: list[Json] = []
        self._is_open = False
        self._stops: list[str] = list(answer.asked.told["stop_sequences"])
        self._waiting = ""  # the end of the text, which may be a stop sequence
        self._stop_reason: str | None = None
        self._stop_sequence: str | None = None

    def begin(self) -> list[Json]:
        """The message without any content."""
        return [{"type": "message_start", "message": self._message([])}, _PING]

    def add(self, new: Choice) -> list[Json]:
        """Text and calls, each in a block."""
        text = self._without_stop(new)
        found = self._add_to("thinking", new.reasoning) if new.reasoning else []
        found += self._add_to("text", text) if text else []
        for call in new.calls:
            found += self._add_call(call)
        if self._stop_reason == "end_turn" and any("input" in block for block in self._content):
            self._stop_reason = "tool_use"
        return found

    def end(self) -> list[Json]:
        """The open block's end, and the message's."""
        found = [] if self._content else self._open({"type": "text", "text": ""})
        delta = {"stop_reason": self._stop_reason, "stop_sequence": self._stop_sequence}
        ended = {"type": "message_delta", "delta": delta, "usage": self._usage()}
        return [*found, *self._close(), ended, {"type": "message_stop"}]

    def failed(self, error: ApiError) -> bytes:
        """The error as an event."""
        return named(error_body(error))

    def result(self) -> Json:
        """The whole message."""
        content = [
            {**block, "input": _as_object(block["input"])} if "input" in block else block
            for block in self._content
        ]
        return self._message(content)

    def _message(self, content: list[Json]) -> Json:
        return {
            "id": self.answer.answer_id,
            "type": "message",
            "role": "assistant",
            "model": self.answer.asked.model,
            "content": content,
            "stop_reason": self._stop_reason,
            "stop_sequence": self._stop_sequence,
            "usage": self._usage(),
        }

    def _usage(self) -> Json:
        used = self.answer.usage()
        cached = used.get("prompt_tokens_details", {}).get("cached_tokens", 0)
        return {
            "input_tokens": used["prompt_tokens"] - cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": used["completion_tokens"],
        }

    def _without_stop(self, new: Choice) -> str:
        """The new text as far as it is none of a stop sequence."""
        text = self._waiting + new.text
        if new.finish_reason:
            self._waiting = ""
            self._stop_reason = self._reason(new)
            found = next((stop for stop in self._stops if stop and text.endswith(stop)), None)
            if found is None or new.finish_reason != "stop":
                return text
            self._stop_reason, self._stop_sequence = "stop_sequence", found
            return text.removesuffix(found)
        if new.calls:
            self._waiting = ""
            return text
        longest = max(map(len, self._stops), default=0)
        lengths = range(min(longest, len(text)), 0, -1)
        ends = (text[-length:] for length in lengths)
        self._waiting = next((end for end in ends if self._may_stop(end)), "")
        return text.removesuffix(self._waiting)

    def _reason(self, last: Choice) -> str:
        """An answer that ends with the context, before ``max_tokens``, has a reason of its own."""
        is_shorter = self.answer.choices[0].num_tokens < self.answer.asked.told["max_tokens"]
        if last.finish_reason == "length" and is_shorter and not last.timed_out:
            return "model_context_window_exceeded"
        return _REASONS.get(str(last.finish_reason), "end_turn")

    def _may_stop(self, end: str) -> bool:
        return any(stop.startswith(end) for stop in self._stops)

    def _delta(self, kind: str, **fields: str) -> Json:
        delta = {"type": kind, **fields}
        return {"type": "content_block_delta", "index": len(self._content) - 1, "delta": delta}

    def _open(self, block: Json) -> list[Json]:
        found = self._close()
        self._content.append(block)
        self._is_open = True
        told = {**block, "input": {}} if "input" in block else dict(block)
        index = len(self._content) - 1
        return [*found, {"type": "content_block_start", "index": index, "content_block": told}]

    def _add_to(self, kind: str, text: str) -> list[Json]:
        """More of the open block, if it is of that kind, else a new one."""
        is_open = self._is_open and self._content[-1]["type"] == kind
        signature = {"signature": ""} if kind == "thinking" else {}
        found = [] if is_open else self._open({"type": kind, kind: "", **signature})
        self._content[-1][kind] += text
        return [*found, self._delta(f"{kind}_delta", **{kind: text})]

    def _add_call(self, call: Json) -> list[Json]:
        """A call, or more of the input of the last."""
        found, arguments = [], call["function"]["arguments"]
        if "id" in call:
            head = {"type": "tool_use", "id": call["id"], "name": call["function"]["name"]}
            found = self._open({**head, "input": ""})
        self._content[-1]["input"] += arguments
        if arguments:
            found.append(self._delta("input_json_delta", partial_json=arguments))
        return found

    def _close(self) -> list[Json]:
        if not self._is_open:
            return []
        self._is_open = False
        signed = [self._delta("signature_delta", signature="")]
        found = signed if self._content[-1]["type"] == "thinking" else []
        return [*found, {"type": "content_block_stop", "index": len(self._content) - 1}]


def _as_object(arguments: str) -> Any:
    """A call's input, which is empty where the answer was cut off within it."""
    try:
        return json.loads(arguments or "{}")
    except ValueError:  # also a number of more than 4300 digits
        return {}


def _count(told: Json) -> Json:
    return {"input_tokens": told["count"]}


MESSAGES = Endpoint(
    *(PATH, CHAT_TASKS, "msg_", read, MessageWriter),
    Operation(
        *("Answer a chat, as Anthropic's API", answers.Message, messages.BODY),
        also=(EVENTS,),
        error=answers.MessageError,
    ),
)
COUNT_TOKENS = Endpoint(
    *(f"{PATH}/count_tokens", CHAT_TASKS, "msg_", read_count, partial(Told, write=_count)),
    Operation(
        *("Count a chat's tokens, as Anthropic's API", answers.TokenCount, messages.COUNTED),
        error=answers.MessageError,
    ),
)
