"""What the app needs of a path that generates: how it is asked, and how its answers are written."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Protocol

from msgspec import Struct

from hf_triton.ports.openai.openapi_schema.document import Operation
from hf_triton.ports.openai.responses.kept import EarlierResponses
from hf_triton.ports.openai.routes.answers import Answer, Choice, Chunks
from hf_triton.ports.openai.schema.answers import to_json
from hf_triton.ports.openai.schema.errors import ApiError
from hf_triton.ports.openai.schema.request import GenerationRequest

SILENT_S = 10.0  # clients give a stream up after a minute or more


class Writer(Protocol):
    """Writes one answer."""

    async def whole(self, chunks: Chunks) -> Any:
        """As one object. Raises ApiError."""

    def events(self, chunks: Chunks) -> AsyncGenerator[bytes, None]:
        """As server-sent events, those of one chunk together. Raises ApiError."""

    def failed(self, error: ApiError) -> bytes:
        """What tells of an error after the first event."""


@dataclass(frozen=True)
class Endpoint:
    """A path for models of ``tasks``; its answers' ids begin with ``id_prefix``. ``operation`` is
    what the served schema tells of it; ``of_caller`` is the same for one who may refer to earlier
    responses. ``by_model`` where the path of one model has it too: /models/NAME/PATH.
    """

    path: str
    tasks: Sequence[str]
    id_prefix: str
    read: Callable[[Mapping[str, Any]], GenerationRequest]
    writer: Callable[[Answer], Writer]
    operation: Operation
    of_caller: Callable[[EarlierResponses], Endpoint] | None = None
    by_model: bool = False


class TypedEvents:
    """Writes an answer of one choice as events that name their type; whole, it is what they add up
    to. ``alive`` is the event that is sent where none has been for a while, such as in a long call.
    """

    alive: dict[str, Any] | None = None

    def __init__(self, answer: Answer) -> None:
        self.answer = answer

    def begin(self) -> list[dict[str, Any]]:
        """The events before the first text; the prompt's tokens are known."""
        raise NotImplementedError

    def add(self, new: Choice) -> list[dict[str, Any]]:
        """The events of what a chunk brings."""
        raise NotImplementedError

    def end(self) -> list[dict[str, Any]]:
        """The last events."""
        raise NotImplementedError

    def result(self) -> Struct:
        """The answer, once it has ended."""
        raise NotImplementedError

    async def whole(self, chunks: Chunks) -> Struct:
        """The answer as one object. Raises ApiError."""
        async with aclosing(self.events(chunks)) as found:
            async for _ in found:
                pass
        return self.result()

    async def events(self, chunks: Chunks) -> AsyncGenerator[bytes, None]:
        """The answer as events. Raises ApiError."""
        sent_s: float | None = None
        async with aclosing(chunks):
            async for prompt, chunk in chunks:
                added = await self.answer.read(prompt, chunk)
                now_s = time.monotonic()
                found = self.begin() if sent_s is None else []
                for new in added:
                    found += self.add(new)
                if not found and self.alive and sent_s and now_s - sent_s > SILENT_S:
                    found = [self.alive]
                if found:
                    sent_s = now_s
                    yield b"".join(map(named, found))
        self.answer.check_complete()
        yield b"".join(map(named, self.end()))


def named(event: Mapping[str, Any]) -> bytes:
    """One server-sent event under the name of its type."""
    return f"event: {event['type']}\ndata: ".encode() + to_json(event) + b"\n\n"
