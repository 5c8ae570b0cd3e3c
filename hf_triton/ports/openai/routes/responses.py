"""``/v1/responses``: items in, items out. The request is chat's, and so are its answer's texts and
calls; here they are written as OpenAI's items and events.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from msgspec import UNSET, Struct, structs, to_builtins

from generator.spec.task_sets import CHAT_TASKS
from hf_triton.ports.openai.openapi_schema.document import EVENTS, Operation
from hf_triton.ports.openai.responses import request as responses
from hf_triton.ports.openai.responses.kept import NOTHING, EarlierResponses
from hf_triton.ports.openai.responses.request import InputTokensRequest, ResponsesRequest
from hf_triton.ports.openai.responses.tools import Tool, custom_input
from hf_triton.ports.openai.routes import chat
from hf_triton.ports.openai.routes.answers import Answer, Choice
from hf_triton.ports.openai.routes.endpoint import Endpoint, TypedEvents, named
from hf_triton.ports.openai.routes.tokens import Told, of_chat
from hf_triton.ports.openai.schema.answers import to_json
from hf_triton.ports.openai.schema.body import Json, convert, read
from hf_triton.ports.openai.schema.errors import ApiError, bad_field
from hf_triton.ports.openai.schema.logprobs import ChatLogprobs, Token, TokenLogprobs
from hf_triton.ports.openai.schema.request import GenerationRequest
from hf_triton.ports.openai.tool_calls.read import Call

_MOST_ITEMS = 100  # of a page


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
    background: bool
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: Any
    metadata: Json
    parallel_tool_calls: bool
    previous_response_id: str | None
    prompt_cache_key: Any
    reasoning: Json
    safety_identifier: Any
    service_tier: str
    store: bool
    temperature: float
    text: Json
    tool_choice: str | Json
    tools: list[Json]
    top_logprobs: int
    top_p: float | None
    truncation: str
    user: Any


class Deleted(Struct):
    """A response that is no longer kept."""

    id: str
    object: Literal["response.deleted"] = "response.deleted"
    deleted: bool = True


class InputItems(Struct, kw_only=True):
    """Of a response: a page of them."""

    object: Literal["list"] = "list"
    data: list[Json]
    first_id: str | None
    last_id: str | None
    has_more: bool


class InputTokens(Struct):
    """Tokens of a prompt."""

    input_tokens: int
    object: Literal["response.input_tokens"] = "response.input_tokens"


def read_response(given: Mapping[str, Any], earlier: EarlierResponses) -> GenerationRequest:
    """What the request asks for. Raises ApiError, 400."""
    return _ask(read(ResponsesRequest, given), earlier)


def read_count(given: Mapping[str, Any], earlier: EarlierResponses) -> GenerationRequest:
    """The same prompt, and nothing that an answer is held to. Raises ApiError, 400."""
    body = read(InputTokensRequest, given)
    choice = "none" if body.tool_choice == "none" else None
    # Which model it is, may be chosen later.
    prompt = structs.replace(body, model=body.model or "any", tool_choice=choice, text=None)
    return replace(of_chat(_ask(prompt, earlier)), model=body.model or "")


def _ask(body: ResponsesRequest, earlier: EarlierResponses) -> GenerationRequest:
    request = responses.as_chat(body, earlier)
    asked = chat.ask_as(request.chat, responses.NAMES, responses.PARTS)
    items = to_json(request.items) if request.told["store"] else b""
    told = {"response": request.told, "tools": request.tools.own, "items": items}
    return replace(asked, told=told)


class ResponseWriter(TypedEvents):
    """Writes one response. An item is open until another begins or the answer ends."""

    def __init__(self, answer: Answer, earlier: EarlierResponses) -> None:
        super().__init__(answer)
        self._earlier = earlier
        self._told: Json = dict(answer.asked.told["response"])
        self._output: list[Json] = []
        self._num_events = 0
        self._is_open = False
        self._arguments = ""  # of the last call
        self._logprobs: list[Token] = []  # of tokens whose text is not written yet
        self._status: Status = "in_progress"

    def begin(self) -> list[Json]:
        """The response without any output."""
        kinds = ("response.created", "response.in_progress")
        return [self._event(kind, response=self.result()) for kind in kinds]

    def add(self, new: Choice) -> list[Json]:
        """Text and calls, each in an item."""
        if new.positions is not None:
            told = ChatLogprobs.of(new.positions, new.num_alternatives)
            self._logprobs += map(_with_bytes, told.content)
        found = self._add_reasoning(new.reasoning) if new.reasoning else []
        found += self._add_text(new.text) if new.text else []
        for call in new.calls:
            found += self._add_call(call)
        if new.finish_reason:
            self._status = "incomplete" if new.finish_reason == "length" else "completed"
        return found

    def end(self) -> list[Json]:
        """The open item's end, and the response's."""
        found = [] if self._output else self._open_message()
        found += self._close(self._status)
        if self._told["store"]:
            kept: Json = to_builtins(self.result())
            self._told["store"] = self._earlier.put(kept, self.answer.asked.told["items"])
        return [*found, self._event(f"response.{self._status}", response=self.result())]

    def failed(self, error: ApiError) -> bytes:
        """The response with its error."""
        self._status = "failed"
        response = self.result()
        response.error = {"code": "server_error", "message": error.message}
        return named(self._event("response.failed", response=response))

    def result(self) -> Response:
        """The response as it is now."""
        is_cut = self._status == "incomplete"
        ended = self._status in ("completed", "incomplete")
        return Response(
            id=self.answer.answer_id,
            created_at=self.answer.created,
            completed_at=int(time.time()) if self._status == "completed" else None,
            status=self._status,
            incomplete_details={"reason": "max_output_tokens"} if is_cut else None,
            model=self.answer.asked.model,
            output=list(self._output),
            usage=self._usage() if ended else None,
            **self._told,
        )

    def _usage(self) -> Json:
        used = self.answer.usage()
        return {
            "input_tokens": used.prompt_tokens,
            "input_tokens_details": {"cached_tokens": used.num_cached, "cache_write_tokens": 0},
            "output_tokens": used.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": used.num_reasoning},
            "total_tokens": used.total_tokens,
        }

    def _event(self, kind: str, **fields: Any) -> Json:
        self._num_events += 1
        return {"type": kind, "sequence_number": self._num_events - 1, **fields}

    def _of_item(self, kind: str, **fields: Any) -> Json:
        """An event of the last item."""
        where = {"item_id": self._output[-1]["id"], "output_index": len(self._output) - 1}
        return self._event(kind, **where, **fields)

    def _of_part(self, kind: str, **fields: Any) -> Json:
        """An event of the text of the last item."""
        return self._of_item(kind, content_index=0, **fields)

    def _open(self, item: Json) -> list[Json]:
        found = self._close("completed")
        self._output.append(item)
        self._is_open = True
        index = len(self._output) - 1
        added = self._event("response.output_item.added", output_index=index, item=dict(item))
        return [*found, added]

    def _open_with_part(self, head: Json, part: Json) -> list[Json]:
        found = self._open({**head, "status": "in_progress", "content": []})
        self._output[-1] = {**self._output[-1], "content": [part]}
        return [*found, self._of_part("response.content_part.added", part=dict(part))]

    def _open_message(self) -> list[Json]:
        head = {"id": f"msg_{uuid.uuid4().hex}", "type": "message", "role": "assistant"}
        part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        return self._open_with_part(head, part)

    def _is_open_as(self, kind: str) -> bool:
        return self._is_open and bool(self._output[-1]["type"] == kind)

    def _add_reasoning(self, text: str) -> list[Json]:
        head = {"id": f"rs_{uuid.uuid4().hex}", "type": "reasoning", "summary": []}
        part = {"type": "reasoning_text", "text": ""}
        found = [] if self._is_open_as("reasoning") else self._open_with_part(head, part)
        [part] = self._output[-1]["content"]
        self._output[-1]["content"] = [{**part, "text": part["text"] + text}]
        return [*found, self._of_part("response.reasoning_text.delta", delta=text)]

    def _add_text(self, text: str) -> list[Json]:
        found = [] if self._is_open_as("message") else self._open_message()
        [part] = self._output[-1]["content"]
        logprobs, self._logprobs = self._logprobs, []
        # In place would be in the events before it too.
        part = {**part, "text": part["text"] + text, "logprobs": part["logprobs"] + logprobs}
        self._output[-1]["content"] = [part]
        delta = self._of_part("response.output_text.delta", delta=text, logprobs=logprobs)
        return [*found, delta]

    def _add_call(self, call: Call) -> list[Json]:
        """A call, or more of the last; what a custom tool is given is told at the call's end."""
        found, arguments = [], call.function.arguments
        if call.id is not UNSET:
            tool: Tool = self.answer.asked.told["tools"][call.function.name]
            kind, text = ("ctc", "input") if tool.is_custom else ("fc", "arguments")
            ids = {"id": f"{kind}_{uuid.uuid4().hex}", "call_id": call.id}
            self._arguments = ""
            found = self._open({**ids, "status": "in_progress", **tool.head, text: ""})
        self._arguments += arguments
        if arguments and self._is_open_as("function_call"):
            self._output[-1]["arguments"] = self._arguments
            kind = "response.function_call_arguments.delta"
            found.append(self._of_item(kind, delta=arguments))
        return found

    def _end_of_call(self, item: Json) -> list[Json]:
        if item["type"] == "function_call":
            told = {"name": item["name"], "arguments": item["arguments"]}
            return [self._of_item("response.function_call_arguments.done", **told)]
        item["input"] = custom_input(self._arguments)
        kind = "response.custom_tool_call_input"
        delta = [self._of_item(f"{kind}.delta", delta=item["input"])] if item["input"] else []
        return [*delta, self._of_item(f"{kind}.done", input=item["input"])]

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
                self._of_part(f"response.{part['type']}.done", **told),
                self._of_part("response.content_part.done", part=part),
            ]
        else:
            found = self._end_of_call(item)
        index = len(self._output) - 1
        return [*found, self._event("response.output_item.done", output_index=index, item=item)]


def _with_bytes(token: Token) -> Token:
    """A token's log-probabilities; without bytes where chat has null for them."""
    others = [_with_bytes(one) for one in getattr(token, "top_logprobs", ())]
    more = {"top_logprobs": others} if isinstance(token, TokenLogprobs) else {}
    return structs.replace(token, bytes=token.bytes or [], **more)


def _count(told: Json) -> InputTokens:
    return InputTokens(told["count"])


def _answering(earlier: EarlierResponses) -> Endpoint:
    return Endpoint(
        *("/v1/responses", CHAT_TASKS, "resp_", partial(read_response, earlier=earlier)),
        partial(ResponseWriter, earlier=earlier),
        Operation("Answer items", Response, ResponsesRequest, also=(EVENTS,)),
        _answering,
    )


def _counting(earlier: EarlierResponses) -> Endpoint:
    return Endpoint(
        *("/v1/responses/input_tokens", CHAT_TASKS, "resp_", partial(read_count, earlier=earlier)),
        partial(Told, write=_count),
        Operation("Count the tokens of items", InputTokens, InputTokensRequest),
        _counting,
    )


RESPONSES = (_answering(NOTHING), _counting(NOTHING))


@dataclass(frozen=True)
class KeptPath:
    """A path of one kept response, and what it answers to the query."""

    path: str
    method: str
    answer: Callable[[EarlierResponses, str, Mapping[str, str]], Any]
    operation: Operation


def _kept(earlier: EarlierResponses, response_id: str, query: Mapping[str, str]) -> Json:
    if query.get("stream", "false") != "false":
        raise bad_field("stream", "another value", "false: a kept response is told whole")
    return earlier.response(response_id)


def _delete(earlier: EarlierResponses, response_id: str, _: Mapping[str, str]) -> Deleted:
    earlier.delete(response_id)
    return Deleted(response_id)


def _input_items(
    earlier: EarlierResponses, response_id: str, query: Mapping[str, str]
) -> InputItems:
    """A page of them, the last first unless the query says so."""
    found = [_whole_item(n, item) for n, item in enumerate(earlier.input_of(response_id))]
    order = convert(Literal["asc", "desc"], query.get("order", "desc"), "order")
    found = found if order == "asc" else found[::-1]
    ids = [item["id"] for item in found]
    if query.get("after") in ids:
        found = found[ids.index(query["after"]) + 1 :]
    limit = query.get("limit", "20")
    if not limit.isdecimal() or not 1 <= int(limit) <= _MOST_ITEMS:
        raise bad_field("limit", "another value", f"1 to {_MOST_ITEMS}")
    page = found[: int(limit)]
    first, last = (page[at]["id"] if page else None for at in (0, -1))
    return InputItems(data=page, first_id=first, last_id=last, has_more=len(page) < len(found))


def _whole_item(number: int, item: Json) -> Json:
    """An item as OpenAI tells of it, with an id and parts."""
    kind = item.get("type") or "message"
    whole = {"id": f"{kind}_{number}", "type": kind, "status": "completed", **item}
    if kind == "message" and isinstance(item.get("content"), str):
        part = "output_text" if item.get("role") == "assistant" else "input_text"
        whole["content"] = [{"type": part, "text": item["content"]}]
    return whole


_PATH = "/v1/responses/{id}"
KEPT = (
    KeptPath(_PATH, "GET", _kept, Operation("A response that is kept", Response)),
    KeptPath(_PATH, "DELETE", _delete, Operation("Forget a response", Deleted)),
    KeptPath(
        *(f"{_PATH}/input_items", "GET", _input_items),
        Operation("What a kept response was an answer to", InputItems),
    ),
)
