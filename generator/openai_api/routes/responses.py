"""``/v1/responses``: items in, items out, stateless. The request is chat's, and so are its answer's
texts and calls; here they are written as OpenAI's items and events.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from generator.openai_api.described import answers
from generator.openai_api.described.operation import EVENTS, Operation
from generator.openai_api.routes import chat
from generator.openai_api.routes.answers import Answer
from generator.openai_api.routes.endpoint import Endpoint, TypedEvents, named
from generator.openai_api.schema import responses
from generator.openai_api.schema.api import Choice
from generator.openai_api.schema.errors import ApiError
from generator.openai_api.schema.logprobs import for_chat
from generator.openai_api.schema.request import GenerationRequest
from generator.openai_api.triton.catalog import CHAT_TASKS

Json = dict[str, Any]
_DETAILS = "completion_tokens_details"


def read(body: Mapping[str, Any]) -> GenerationRequest:
    """What the request asks for. Raises ApiError, 400."""
    asked = chat.read_as(responses.as_chat(body), responses.NAMES)
    return replace(asked, told=responses.told(body))


class ResponseWriter(TypedEvents):
    """Writes one response. An item is open until another begins or the answer ends."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer)
        self._output: list[Json] = []
        self._num_events = 0
        self._is_open = False
        self._logprobs: list[Json] = []  # of tokens whose text is not written yet
        self._status = "in_progress"

    def begin(self) -> list[Json]:
        """The response without any output."""
        kinds = ("response.created", "response.in_progress")
        return [self._event(kind, response=self.result()) for kind in kinds]

    def add(self, new: Choice) -> list[Json]:
        """Text and calls, each in an item."""
        if new.positions is not None:
            self._logprobs += map(
                _with_bytes, for_chat(new.positions, new.num_alternatives)["content"]
            )
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
        return [*found, self._event(f"response.{self._status}", response=self.result())]

    def failed(self, error: ApiError) -> bytes:
        """The response with its error."""
        self._status = "failed"
        told = {"code": "server_error", "message": error.message}
        return named(self._event("response.failed", response={**self.result(), "error": told}))

    def result(self) -> Json:
        """The response as it is now."""
        is_cut = self._status == "incomplete"
        ended = self._status in ("completed", "incomplete")
        return {
            "id": self.answer.answer_id,
            "object": "response",
            "created_at": self.answer.created,
            "completed_at": int(time.time()) if self._status == "completed" else None,
            "status": self._status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "model": self.answer.asked.model,
            "output": list(self._output),
            **self.answer.asked.told,
            "usage": self._usage() if ended else None,
        }

    def _usage(self) -> Json:
        used: Json = dict(self.answer.usage())
        cached = (used.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
        return {
            "input_tokens": used["prompt_tokens"],
            "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
            "output_tokens": used["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": 0, **used.get(_DETAILS, {})},
            "total_tokens": used["total_tokens"],
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

    def _add_call(self, call: Json) -> list[Json]:
        """A call, or more of the arguments of the last."""
        found, arguments = [], call["function"]["arguments"]
        if "id" in call:
            head = {"id": f"fc_{uuid.uuid4().hex}", "type": "function_call"}
            of_call = {"call_id": call["id"], "name": call["function"]["name"], "arguments": ""}
            found = self._open({**head, "status": "in_progress", **of_call})
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
                self._of_part(f"response.{part['type']}.done", **told),
                self._of_part("response.content_part.done", part=part),
            ]
        else:
            told = {"name": item["name"], "arguments": item["arguments"]}
            found = [self._of_item("response.function_call_arguments.done", **told)]
        index = len(self._output) - 1
        return [*found, self._event("response.output_item.done", output_index=index, item=item)]


def _with_bytes(entry: Json) -> Json:
    """A token's log-probabilities; without bytes where chat has null for them."""
    found = {**entry, "bytes": entry["bytes"] or []}
    if "top_logprobs" in entry:
        found["top_logprobs"] = [_with_bytes(one) for one in entry["top_logprobs"]]
    return found


RESPONSES = Endpoint(
    *("/v1/responses", CHAT_TASKS, "resp_", read, ResponseWriter),
    Operation("Answer items, stateless", answers.Response, responses.BODY, also=(EVENTS,)),
)
