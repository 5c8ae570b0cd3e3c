"""``/v1/messages``: a chat, asked for and answered as Anthropic's API."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from msgspec import UNSET, Struct, structs, to_builtins

from generator.spec.task_sets import CHAT_TASKS
from hf_triton.ports.openai.openapi import EVENTS, Operation
from hf_triton.ports.openai.routes.answers import Answer, Choice, Endpoint, Writer, named
from hf_triton.ports.openai.routes.choices import ask_as
from hf_triton.ports.openai.routes.tokens import TokenizerWriter, of_chat
from hf_triton.ports.openai.schema import messages
from hf_triton.ports.openai.schema.body import Json, read
from hf_triton.ports.openai.schema.errors import MESSAGES_PATH, ApiError
from hf_triton.ports.openai.schema.messages import CountRequest, MessagesRequest
from hf_triton.ports.openai.schema.request import GenerationRequest
from hf_triton.ports.openai.tool_calls.answer_reader import Call, num_safe

_PING: Json = {"type": "ping"}
_REASONS = {"length": "max_tokens", "tool_calls": "tool_use"}


class MessageUsage(Struct):
    input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    cache_creation_input_tokens: int = 0


class Message(Struct, kw_only=True):
    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[Json]
    stop_reason: str | None
    stop_sequence: str | None
    usage: MessageUsage


class TokenCount(Struct):
    input_tokens: int


def read_messages(given: Mapping[str, Any]) -> GenerationRequest:
    body = read(MessagesRequest, given)
    told = {"stop_sequences": body.stop_sequences or [], "max_tokens": body.max_tokens}
    return replace(_ask(body), told=told)


def read_count(given: Mapping[str, Any]) -> GenerationRequest:
    """Reads the prompt alone: tool_choice and formats would only add to it."""
    body = read(CountRequest, given)
    is_none = body.tool_choice is not None and body.tool_choice.type == "none"
    choice = body.tool_choice if is_none else None
    return of_chat(_ask(structs.replace(body, tool_choice=choice, output_config=None)))


def _ask(body: CountRequest) -> GenerationRequest:
    return ask_as(messages.as_chat(body), messages.NAMES, messages.PARTS)


class MessageWriter(Writer):
    """Writes one message. A block is open until another begins or the answer ends."""

    ping = named(_PING)
    encode = staticmethod(named)

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer)
        self._content: list[Json] = []
        self._is_open = False
        self._stops: list[str] = list(answer.asked.told["stop_sequences"])
        self._waiting = ""  # the end of the text, which may be a stop sequence
        self._stop_reason: str | None = None
        self._stop_sequence: str | None = None

    def begin(self) -> list[Json]:
        return [{"type": "message_start", "message": self._message([])}, _PING]

    def add(self, new: Choice) -> list[Json]:
        text = self._without_stop(new)
        found = self._add_to("thinking", new.reasoning) if new.reasoning else []
        found += self._add_to("text", text) if text else []
        for call in new.calls:
            found += self._add_call(call)
        if self._stop_reason == "end_turn" and any("input" in block for block in self._content):
            self._stop_reason = "tool_use"
        return found

    def end(self) -> list[Json]:
        found = [] if self._content else self._open({"type": "text", "text": ""})
        delta = {"stop_reason": self._stop_reason, "stop_sequence": self._stop_sequence}
        ended = {"type": "message_delta", "delta": delta, "usage": self._usage()}
        return [*found, *self._close(), ended, {"type": "message_stop"}]

    def failed(self, error: ApiError) -> bytes:
        return named(to_builtins(error.message_body()))

    def result(self) -> Message:
        content = [
            {**block, "input": _as_object(block["input"])} if "input" in block else block
            for block in self._content
        ]
        return self._message(content)

    def _message(self, content: list[Json]) -> Message:
        return Message(
            id=self.answer.answer_id,
            model=self.answer.asked.model,
            content=content,
            stop_reason=self._stop_reason,
            stop_sequence=self._stop_sequence,
            usage=self._usage(),
        )

    def _usage(self) -> MessageUsage:
        used, cached = self.answer.usage(), self.answer.num_cached
        return MessageUsage(used.prompt_tokens - cached, cached, used.completion_tokens)

    def _without_stop(self, new: Choice) -> str:
        """The new text, but for a stop sequence and what may be the beginning of one."""
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
        safe = num_safe(text, self._stops)
        self._waiting = text[safe:]
        return text[:safe]

    def _reason(self, last: Choice) -> str:
        """An answer that fills the context before ``max_tokens`` has a reason of its own."""
        is_shorter = self.answer.choices[0].num_tokens < self.answer.asked.told["max_tokens"]
        if last.finish_reason == "length" and is_shorter and not last.timed_out:
            return "model_context_window_exceeded"
        return _REASONS.get(str(last.finish_reason), "end_turn")

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
        is_open = self._is_open and self._content[-1]["type"] == kind
        signature = {"signature": ""} if kind == "thinking" else {}
        found = [] if is_open else self._open({"type": kind, kind: "", **signature})
        self._content[-1][kind] += text
        return [*found, self._delta(f"{kind}_delta", **{kind: text})]

    def _add_call(self, call: Call) -> list[Json]:
        found, arguments = [], call.function.arguments
        if call.id is not UNSET:
            head = {"type": "tool_use", "id": call.id, "name": call.function.name}
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
    """A call's input; empty where the answer was cut off within it."""
    try:
        return json.loads(arguments or "{}")
    except ValueError:  # also a number of more than 4300 digits
        return {}


MESSAGES = Endpoint(
    *((MESSAGES_PATH,), CHAT_TASKS, "msg_", read_messages),
    Operation("Answer a chat, as Anthropic's API", Message, MessagesRequest, also=(EVENTS,)),
    MessageWriter,
)
COUNT_TOKENS = Endpoint(
    *((f"{MESSAGES_PATH}/count_tokens",), CHAT_TASKS, "msg_", read_count),
    Operation("Count a chat's tokens, as Anthropic's API", TokenCount, CountRequest),
    partial(TokenizerWriter, write=lambda told: TokenCount(told["count"])),
)
