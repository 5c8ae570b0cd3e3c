"""``/v1/responses``: a chat, asked for and answered as items."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from msgspec import UNSET, Struct, structs

from generator.spec.task_sets import CHAT_TASKS
from hf_triton.ports.openai.openapi import EVENTS, Operation
from hf_triton.ports.openai.responses import request as responses
from hf_triton.ports.openai.responses.kept import NOTHING, PREFIX, EarlierResponses, item_id
from hf_triton.ports.openai.responses.request import ResponsesRequest, Tool
from hf_triton.ports.openai.routes.answers import Answer, Choice, Endpoint, Writer, named
from hf_triton.ports.openai.routes.choices import ask_as
from hf_triton.ports.openai.schema.body import Json, read
from hf_triton.ports.openai.schema.errors import ApiError
from hf_triton.ports.openai.schema.logprobs import ChatLogprobs, Token, TokenLogprobs
from hf_triton.ports.openai.schema.request import GenerationRequest
from hf_triton.ports.openai.tool_calls.answer_reader import Call

# By an item's type: the prefix of its id, its own fields and its part.
_TEXT_ITEMS: dict[str, tuple[str, Json, Json]] = {
    "message": (
        *("msg", {"role": "assistant"}),
        {"type": "output_text", "text": "", "annotations": [], "logprobs": []},
    ),
    "reasoning": ("rs", {"summary": []}, {"type": "reasoning_text", "text": ""}),
}
Status = Literal["completed", "incomplete", "failed", "in_progress"]


class Response(Struct, kw_only=True):
    """OpenAI's response; what it repeats of its request comes last."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    completed_at: int | None
    status: Status
    error: Json | None = None
    incomplete_details: Json | None
    model: str
    output: list[Json]
    usage: Json | None
    background: bool = False
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: Any
    metadata: Json
    parallel_tool_calls: bool
    previous_response_id: str | None
    prompt_cache_key: Any
    reasoning: Json
    safety_identifier: Any
    service_tier: str = "default"
    store: bool
    temperature: float
    text: Json
    tool_choice: str | Json
    tools: list[Json]
    top_logprobs: int
    top_p: float | None
    truncation: str = "disabled"
    user: Any


def read_response(
    given: Mapping[str, Any], earlier: EarlierResponses = NOTHING
) -> GenerationRequest:
    chat, told = responses.as_chat(read(ResponsesRequest, given), earlier)
    return replace(ask_as(chat, responses.NAMES, responses.PARTS), told=told)


class ResponseWriter(Writer):
    """Writes one response. An item is open until another begins or the answer ends."""

    encode = staticmethod(named)

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer)
        self._told: Json = dict(answer.asked.told["response"])
        self._output: list[Json] = []
        self._num_events = 0
        self._is_open = False
        self._logprobs: list[Token] = []  # of tokens whose text is not written yet
        self._status: Status = "in_progress"

    def begin(self) -> list[Json]:
        kinds = ("response.created", "response.in_progress")
        return [self._event(kind, response=self.result()) for kind in kinds]

    def add(self, new: Choice) -> list[Json]:
        if new.positions is not None:
            told = ChatLogprobs.of(new.positions, self.asked.num_logprobs or 0)
            self._logprobs += map(_with_bytes, told.content)
        found = self._add_text("reasoning", new.reasoning) if new.reasoning else []
        found += self._add_text("message", new.text) if new.text else []
        for call in new.calls:
            found += self._add_call(call)
        if new.finish_reason:
            self._status = "incomplete" if new.finish_reason == "length" else "completed"
        return found

    def end(self) -> list[Json]:
        found = [] if self._output else self._open_text("message")
        found += self._close(self._status)
        if self._told["store"]:
            kept = self.answer.answer_id, self.result(), self.asked.told["items"]
            self._told["store"] = self.answer.earlier.put(*kept)
        return [*found, self._event(f"response.{self._status}", response=self.result())]

    def failed(self, error: ApiError) -> bytes:
        self._status = "failed"
        response = self.result()
        response.error = {"code": "server_error", "message": error.message}
        return named(self._event("response.failed", response=response))

    def result(self) -> Response:
        is_cut = self._status == "incomplete"
        ended = self._status in ("completed", "incomplete")
        return Response(
            id=self.answer.answer_id,
            created_at=self.answer.created,
            completed_at=int(time.time()) if self._status == "completed" else None,
            status=self._status,
            incomplete_details={"reason": "max_output_tokens"} if is_cut else None,
            model=self.asked.model,
            output=list(self._output),
            usage=self._usage() if ended else None,
            **self._told,
        )

    def _usage(self) -> Json:
        used = self.answer.usage()
        return {
            "input_tokens": used.prompt_tokens,
            "input_tokens_details": {
                "cached_tokens": self.answer.num_cached,
                "cache_write_tokens": 0,
            },
            "output_tokens": used.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": self.answer.num_reasoning},
            "total_tokens": used.total_tokens,
        }

    def _event(self, kind: str, **fields: Any) -> Json:
        self._num_events += 1
        return {"type": kind, "sequence_number": self._num_events - 1, **fields}

    def _of_item(self, kind: str, **fields: Any) -> Json:
        where = {"item_id": self._output[-1]["id"], "output_index": len(self._output) - 1}
        return self._event(kind, **where, **fields)

    def _item_id(self, prefix: str) -> str:
        return item_id(prefix, self.answer.answer_id, len(self._output))

    def _open(self, item: Json) -> list[Json]:
        found = self._close("completed")
        self._output.append(item)
        self._is_open = True
        index = len(self._output) - 1
        added = self._event("response.output_item.added", output_index=index, item=dict(item))
        return [*found, added]

    def _open_text(self, kind: str) -> list[Json]:
        prefix, more, part = _TEXT_ITEMS[kind]
        head = {"id": self._item_id(prefix), "type": kind, **more}
        found = self._open({**head, "status": "in_progress", "content": []})
        self._output[-1] = {**self._output[-1], "content": [part]}
        added = self._of_item("response.content_part.added", content_index=0, part=part)
        return [*found, added]

    def _add_text(self, kind: str, text: str) -> list[Json]:
        """More of the open item, if it is of that kind, else a new one."""
        is_open = self._is_open and self._output[-1]["type"] == kind
        found = [] if is_open else self._open_text(kind)
        [part] = self._output[-1]["content"]
        # In place would be in the events before it too.
        part, delta = {**part, "text": part["text"] + text}, {"content_index": 0, "delta": text}
        if kind == "message":
            delta["logprobs"], self._logprobs = self._logprobs, []
            part["logprobs"] = part["logprobs"] + delta["logprobs"]
        self._output[-1]["content"] = [part]
        return [*found, self._of_item(f"response.{part['type']}.delta", **delta)]

    def _add_call(self, call: Call) -> list[Json]:
        found, arguments = [], call.function.arguments
        if call.id is not UNSET:
            tool: Tool = self.asked.told["tools"][call.function.name]
            head = {"id": self._item_id("fc"), "call_id": call.id, "status": "in_progress"}
            found = self._open({**head, **tool.head, "arguments": ""})
        self._output[-1]["arguments"] += arguments
        if arguments:
            kind = "response.function_call_arguments.delta"
            found.append(self._of_item(kind, delta=arguments))
        return found

    def _close(self, status: str) -> list[Json]:
        if not self._is_open:
            return []
        self._is_open = False
        item = {**self._output[-1], "status": status}
        self._output[-1] = item
        if "content" in item:
            [part] = item["content"]
            told = {name: part[name] for name in ("text", "logprobs") if name in part}
            found = [
                self._of_item(f"response.{part['type']}.done", content_index=0, **told),
                self._of_item("response.content_part.done", content_index=0, part=part),
            ]
        else:
            told = {"name": item["name"], "arguments": item["arguments"]}
            found = [self._of_item("response.function_call_arguments.done", **told)]
        index = len(self._output) - 1
        return [*found, self._event("response.output_item.done", output_index=index, item=item)]


def _with_bytes(token: Token) -> Token:
    """A token's log-probabilities with an empty list where chat has null for its bytes."""
    others = [_with_bytes(one) for one in getattr(token, "top_logprobs", ())]
    more = {"top_logprobs": others} if isinstance(token, TokenLogprobs) else {}
    return structs.replace(token, bytes=token.bytes or [], **more)


RESPONSES = Endpoint(
    *(("/v1/responses",), CHAT_TASKS, PREFIX, read_response),
    Operation("Answer items", Response, ResponsesRequest, also=(EVENTS,)),
    ResponseWriter,
    refers=True,
)
