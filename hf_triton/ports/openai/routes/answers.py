"""Paths that generate: their description for the app, and their answers, put together from the
chunks of their prompts and written as one object or as events.

The choices of all prompts are counted through: those of the second follow those of the first.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, Struct, UnsetType

from hf_triton.ports.openai.openapi import Operation
from hf_triton.ports.openai.responses.kept import NOTHING, EarlierResponses
from hf_triton.ports.openai.schema.errors import ApiError
from hf_triton.ports.openai.schema.logprobs import Offsets, Position, read_positions
from hf_triton.ports.openai.schema.request import GenerationRequest
from hf_triton.ports.openai.tool_calls.answer_reader import AnswerReader, Call
from hf_triton.ports.openai.triton.tensors import Chunk
from hf_triton.text_generation.request.chat_formats import read_counts, read_format

Result = TypeVar("Result")
# (which prompt, its chunk)
Chunks = AsyncGenerator[tuple[int, Chunk], None]
SILENT_S = 10.0  # clients and proxies give a stream up after a minute or more
_ENCODER = msgspec.json.Encoder()
LARGE_BYTES = 2**18  # take a hundredth of a second and more
# OpenAI knows nothing that is called timeout: like a full context, it cuts the text off.
_FINISH_REASONS = {"timeout": "length"}


class Usage(Struct):
    prompt_tokens: int
    total_tokens: int


class PromptDetails(Struct):
    cached_tokens: int


class CompletionDetails(Struct):
    reasoning_tokens: int


class GenerationUsage(Usage):
    completion_tokens: int
    prompt_tokens_details: PromptDetails | UnsetType = UNSET
    completion_tokens_details: CompletionDetails | UnsetType = UNSET


@dataclass
class Choice:
    """One choice's answer, or the part of it that a chunk brings."""

    index: int
    text: str = ""
    positions: list[Position] | None = None  # None without log-probabilities
    offsets: Offsets = field(default_factory=Offsets, repr=False)  # of the next position
    finish_reason: str | None = None
    calls: list[Call] = field(default_factory=list)  # calls of tools, or parts of them
    reasoning: str = ""  # before the text
    num_tokens: int = field(default=0, repr=False)
    num_reasoning_tokens: int = field(default=0, repr=False)  # so far
    timed_out: bool = False
    reader: AnswerReader | None = field(default=None, repr=False)  # of a chat's answer so far

    @property
    def has_news(self) -> bool:
        """Tokens of a call that is still hidden are no news."""
        return any((self.text, self.reasoning, self.calls, self.positions, self.finish_reason))


@dataclass
class Answer:
    """A request's answer so far; ``earlier`` are the responses that its caller may refer to."""

    asked: GenerationRequest
    answer_id: str
    task: str
    earlier: EarlierResponses = NOTHING
    created: int = field(default_factory=lambda: int(time.time()))
    choices: dict[int, Choice] = field(default_factory=dict)
    prompt_tokens: dict[int, int] = field(default_factory=dict)
    cached_tokens: dict[int, int] = field(default_factory=dict)  # where they may be told
    num_bytes: int = 0  # that were read of the model's lists

    async def read(self, prompt: int, chunk: Chunk) -> list[Choice]:
        """Adds a chunk; gives what it adds to each choice."""
        self.num_bytes += chunk.num_bytes
        return await aside(chunk.num_bytes, lambda: list(self._new_choices(prompt, chunk)))

    def _new_choices(self, prompt: int, chunk: Chunk) -> Iterator[Choice]:
        self.prompt_tokens[prompt] = chunk.num_input_tokens
        if chunk.num_cached_tokens is not None:
            self.cached_tokens[prompt] = chunk.num_cached_tokens
        for position, text in enumerate(chunk.texts):
            index = prompt * self.asked.n + position
            known = self.choices.setdefault(index, Choice(index))
            if known.finish_reason is None:
                new = self._new(known, chunk, position, text)
                counts = self.asked.continuous_usage and new.num_tokens
                if new.has_news or counts:
                    yield new

    def _new(self, known: Choice, chunk: Chunk, position: int, text: str) -> Choice:
        reason = chunk.finish_reasons[position]
        new = Choice(
            known.index,
            text,
            finish_reason=_FINISH_REASONS.get(reason, reason) or None,
            num_tokens=chunk.num_output_tokens[position],
            timed_out=reason == "timeout",
        )
        if self.asked.num_logprobs is not None:
            of_prompt = chunk.prompt_logprobs if self.asked.echoes else "[]"
            told = (of_prompt, chunk.logprobs[position])
            new.positions = [one for text in told for one in read_positions(text, known.offsets)]
        if self.asked.is_chat:
            reader = known.reader = known.reader or AnswerReader(
                self.asked.tools, read_format(chunk.chat_format)
            )
            ends = new.finish_reason is not None
            new.reasoning, new.text, new.calls = reader.read(text, ends=ends)
            new.finish_reason = reader.finish_reason(new.finish_reason)
            known.reasoning = known.reasoning or new.reasoning
            counts = read_counts(chunk.chat_format) if known.reasoning else []
            known.num_reasoning_tokens = counts[position] if counts else 0
        known.finish_reason = new.finish_reason
        known.num_tokens += new.num_tokens
        return new

    def check_complete(self) -> None:
        """Raises ApiError where a choice did not come to its end."""
        ended = [choice for choice in self.choices.values() if choice.finish_reason]
        if len(ended) < len(self.asked.inputs) * self.asked.n:
            raise ApiError(500, "the model's answer ended early")

    @property
    def num_cached(self) -> int:
        return sum(self.cached_tokens.values())

    @property
    def num_reasoning(self) -> int:
        return sum(choice.num_reasoning_tokens for choice in self.choices.values())

    def usage(self) -> GenerationUsage:
        """A prompt counts once, however many its choices."""
        prompt = sum(self.prompt_tokens.values())
        completion = sum(choice.num_tokens for choice in self.choices.values())
        cached = PromptDetails(self.num_cached) if self.cached_tokens else UNSET
        details = CompletionDetails(self.num_reasoning) if self.num_reasoning else UNSET
        return GenerationUsage(prompt, prompt + completion, completion, cached, details)


def to_json(value: Any) -> bytes:
    return _ENCODER.encode(value)


async def aside(num_bytes: int, work: Callable[[], Result]) -> Result:
    """Returns what ``work`` returns; runs it on a thread if its bytes would delay other callers."""
    return work() if num_bytes < LARGE_BYTES else await asyncio.to_thread(work)


class Writer:
    """Writes one answer. ``ping`` is sent where no event has been for a while: a comment."""

    ping = b": \n\n"

    def __init__(self, answer: Answer) -> None:
        self.answer, self.asked = answer, answer.asked

    def begin(self) -> Sequence[Any]:
        """The events before the first text; the prompt's tokens are known."""
        return ()

    def add(self, new: Choice) -> Sequence[Any]:
        """The events of what a chunk adds to a choice."""
        raise NotImplementedError

    def end(self) -> Sequence[Any]:
        """The last events."""
        return ()

    def take(self, added: Sequence[Choice]) -> None:
        """Takes what a chunk adds to the object."""
        for new in added:
            self.add(new)

    def result(self) -> Any:
        """The object, after ``end``."""
        raise NotImplementedError

    def failed(self, error: ApiError) -> bytes:
        """Tells of an error after the first event."""
        return sse(error.body())

    def encode(self, event: Any) -> bytes:
        return sse(event)

    async def whole(self, chunks: Chunks) -> Any:
        """The answer as one object. Raises ApiError."""
        async with aclosing(chunks):
            async for prompt, chunk in chunks:
                added = await self.answer.read(prompt, chunk)
                await aside(chunk.num_bytes, partial(self.take, added))
        self.answer.check_complete()
        await aside(self.answer.num_bytes, self.end)
        return await aside(self.answer.num_bytes, self.result)

    async def events(self, chunks: Chunks) -> AsyncGenerator[bytes, None]:
        """The answer as server-sent events, those of one chunk together. Raises ApiError."""
        sent_s: float | None = None

        def encoded(added: list[Choice]) -> bytes:
            events = list(self.begin()) if sent_s is None else []
            for new in added:
                events += self.add(new)
            return b"".join(map(self.encode, events))

        async with aclosing(chunks):
            async for prompt, chunk in chunks:
                added = await self.answer.read(prompt, chunk)
                written = await aside(chunk.num_bytes, partial(encoded, added))
                now_s = time.monotonic()
                if not written and sent_s and now_s - sent_s > SILENT_S:
                    written = self.ping
                if written:
                    sent_s = now_s
                    yield written
        self.answer.check_complete()
        ended = await aside(self.answer.num_bytes, self.end)
        if written := b"".join(map(self.encode, ended)):
            yield written


def sse(event: Any) -> bytes:
    return b"data: " + to_json(event) + b"\n\n"


def named(event: Mapping[str, Any]) -> bytes:
    """One server-sent event under the name of its type."""
    return f"event: {event['type']}\ndata: ".encode() + to_json(event) + b"\n\n"


@dataclass(frozen=True)
class Endpoint:
    paths: tuple[str, ...]
    tasks: Sequence[str]  # of models that it is for
    id_prefix: str  # of answers' ids
    read: Callable[..., Any]  # a body, or a form
    operation: Operation  # its entry in the served schema
    writer: Callable[[Answer], Writer] = Writer  # of what is generated
    refers: bool = False  # whether ``read`` takes the caller's earlier responses too
