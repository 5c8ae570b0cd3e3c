"""Puts an answer together from the chunks of its prompts: as one object, or as events.

The choices of all prompts are counted through: those of the second follow those of the first.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from msgspec import UNSET, Struct, UnsetType

from generator.spec.runtime_rules import read_counts, read_format
from hf_triton.ports.openai.schema.answers import (
    CompletionDetails,
    GenerationUsage,
    PromptDetails,
    sse,
)
from hf_triton.ports.openai.schema.errors import ApiError
from hf_triton.ports.openai.schema.logprobs import (
    Offsets,
    Position,
    prompt_logprobs,
    read_positions,
)
from hf_triton.ports.openai.schema.request import GenerationRequest
from hf_triton.ports.openai.tool_calls.answer_reader import AnswerReader
from hf_triton.ports.openai.tool_calls.read import Call
from hf_triton.ports.openai.triton.tensors import Chunk

Result = TypeVar("Result")
# (which prompt, its chunk)
Chunks = AsyncGenerator[tuple[int, Chunk], None]
DONE = b"data: [DONE]\n\n"
_LARGE_BYTES = 2**18  # take a hundredth of a second and more
# OpenAI knows nothing that is called timeout: like a full context, it cuts the text off.
_FINISH_REASONS = {"timeout": "length"}


@dataclass
class Choice:
    """One choice's answer, or the part of it that a chunk brings.

    ``positions`` are None without log-probabilities, and ``offsets`` are where the next begins.
    ``calls`` are calls of tools, or parts of them, or of one ``as_function`` where it was asked for
    so; ``reasoning`` comes before the text, and ``num_reasoning_tokens`` are its tokens so far,
    where they are counted; ``of_prompt`` is what the answer tells of its prompt, in vLLM's names;
    ``ids`` are those of its tokens, where they are to be told; ``timed_out`` where it ended because
    its time did.
    """

    index: int
    num_alternatives: int = 0
    text: str = ""
    positions: list[Position] | None = None
    offsets: Offsets = field(default_factory=Offsets, repr=False)
    finish_reason: str | None = None
    calls: list[Call] = field(default_factory=list)
    as_function: bool = False
    reasoning: str = ""
    num_tokens: int = field(default=0, repr=False)
    num_reasoning_tokens: int = field(default=0, repr=False)
    of_prompt: dict[str, Any] = field(default_factory=dict)
    ids: list[int] | UnsetType = UNSET
    timed_out: bool = False

    @property
    def has_news(self) -> bool:
        """Whether a part tells anything: the tokens of a call that is hidden still do not."""
        told = (self.text, self.reasoning, self.calls, self.positions, self.ids)
        return any((*told, self.of_prompt, self.finish_reason))


@dataclass
class Answer:
    """What a request has been answered so far, by a model of ``task``. ``answer_id`` and
    ``created`` are in each chunk.
    """

    asked: GenerationRequest
    answer_id: str
    task: str
    created: int = field(default_factory=lambda: int(time.time()))
    choices: dict[int, Choice] = field(default_factory=dict)
    prompt_tokens: dict[int, int] = field(default_factory=dict)
    cached_tokens: dict[int, int] = field(default_factory=dict)  # where they may be told
    readers: dict[int, AnswerReader] = field(default_factory=dict)
    num_bytes: int = 0  # that were read of the model's lists

    async def read(self, prompt: int, chunk: Chunk) -> list[Choice]:
        """Adds a chunk; gives for each choice what the chunk adds to it, if anything."""
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
            self.asked.num_logprobs or 0,
            text,
            finish_reason=_FINISH_REASONS.get(reason, reason) or None,
            num_tokens=chunk.num_output_tokens[position],
            timed_out=reason == "timeout",
        )
        if self.asked.num_logprobs is not None:
            of_prompt = chunk.prompt_logprobs if self.asked.echoes else "[]"
            told = (of_prompt, chunk.logprobs[position])
            new.positions = [one for text in told for one in read_positions(text, known.offsets)]
        num = self.asked.num_prompt_logprobs
        if num is not None:
            new.of_prompt["prompt_logprobs"] = prompt_logprobs(chunk.prompt_logprobs, num)
        if self.asked.returns_token_ids:
            new.ids = json.loads(chunk.token_ids[position])
            if prompt_ids := json.loads(chunk.prompt_token_ids):
                new.of_prompt["prompt_token_ids"] = prompt_ids
        if self.asked.is_chat:
            self._read(new, chunk.chat_format)
            known.reasoning = known.reasoning or new.reasoning
            counts = read_counts(chunk.chat_format) if known.reasoning else []
            known.num_reasoning_tokens = counts[position] if counts else 0
        known.finish_reason = new.finish_reason
        known.num_tokens += new.num_tokens
        return new

    def _read(self, new: Choice, chat_format: str) -> None:
        """Leaves of a choice's new text what is neither reasoning nor of a call."""
        new.as_function = bool(self.asked.tools and self.asked.tools.as_functions)
        reading = self.readers.get(new.index)
        if reading is None:
            reading = AnswerReader(self.asked.tools, read_format(chat_format))
            self.readers[new.index] = reading
        read = reading.read(new.text, ends=new.finish_reason is not None)
        new.reasoning, new.text, new.calls = read.reasoning, read.text, read.calls
        new.finish_reason = reading.finish_reason(new.finish_reason)

    def check_complete(self) -> None:
        """Raises ApiError where a choice did not come to its end."""
        ended = [choice for choice in self.choices.values() if choice.finish_reason]
        if len(ended) < len(self.asked.inputs) * self.asked.n:
            raise ApiError(500, "the model's answer broke off")

    def usage(self) -> GenerationUsage:
        """Tokens over all prompts and choices; a prompt counts once, however many its choices."""
        prompt = sum(self.prompt_tokens.values())
        completion = sum(choice.num_tokens for choice in self.choices.values())
        cached = PromptDetails(sum(self.cached_tokens.values())) if self.cached_tokens else UNSET
        reasoning = sum(choice.num_reasoning_tokens for choice in self.choices.values())
        details = CompletionDetails(reasoning) if reasoning else UNSET
        return GenerationUsage(prompt, prompt + completion, completion, cached, details)

    def head(self, kind: str) -> dict[str, Any]:
        """The fields that every object of this answer begins with."""
        return {
            "id": self.answer_id,
            "object": kind,
            "created": self.created,
            "model": self.asked.model,
        }


async def aside(num_bytes: int, work: Callable[[], Result]) -> Result:
    """What ``work`` gives: where so many bytes are much, from a thread, as other callers would wait
    for it.
    """
    return work() if num_bytes < _LARGE_BYTES else await asyncio.to_thread(work)


@dataclass(frozen=True)
class Choices:
    """How one of OpenAI's APIs writes lists of choices: whole ones, in ``answer``, and what a chunk
    adds to them. ``opening`` are the choices' own first chunks, before any text; ``beside`` is what
    the answer has beside its choices, from the first of them.
    """

    object: str
    chunk_object: str
    answer: type[Struct]
    write: Callable[[Choice], Struct]
    write_chunk: Callable[[Choice], Struct]
    opening: Callable[[int], Sequence[Struct]]
    beside: Callable[[Choice], Mapping[str, Any]] = lambda _: {}


@dataclass(frozen=True)
class ChoicesWriter:
    """Writes one answer so."""

    how: Choices
    answer: Answer

    async def whole(self, chunks: Chunks) -> Struct:
        """The answer as one object. Raises ApiError."""
        parts: dict[int, list[Choice]] = {}
        async with aclosing(chunks):
            async for prompt, chunk in chunks:
                for new in await self.answer.read(prompt, chunk):
                    parts.setdefault(new.index, []).append(new)
        self.answer.check_complete()
        return await aside(self.answer.num_bytes, partial(self._whole, parts))

    def _whole(self, parts: Mapping[int, list[Choice]]) -> Struct:
        choices = [_joined(parts[index]) for index in sorted(parts)]
        return self.how.answer(
            **self.answer.head(self.how.object),
            choices=[self.how.write(choice) for choice in choices],
            usage=self.answer.usage(),
            **self.how.beside(choices[0]),
        )

    async def events(self, chunks: Chunks) -> AsyncGenerator[bytes, None]:
        """The answer as server-sent events, those of one chunk together. Raises ApiError."""
        asked = self.answer.asked
        head = self.answer.head(self.how.chunk_object)
        if asked.include_usage:
            head["usage"] = None  # as OpenAI has it: in every chunk, and null in all but the last
        opening = [{"choices": [new]} for new in self.how.opening(asked.n)]
        async with aclosing(chunks):
            async for prompt, chunk in chunks:
                added = await self.answer.read(prompt, chunk)
                if asked.continuous_usage:
                    head["usage"] = self.answer.usage()
                if added or opening:
                    work = partial(self._written, head, opening, added)
                    yield await aside(chunk.num_bytes, work)
                    opening = []
        self.answer.check_complete()
        last = {**head, "choices": [], "usage": self.answer.usage()}
        yield (sse(last) if asked.include_usage else b"") + DONE

    def _written(
        self, head: Mapping[str, Any], opening: list[dict[str, Any]], added: list[Choice]
    ) -> bytes:
        """The events of what a chunk adds, the ``opening`` ones before them."""
        how = self.how
        written = ({"choices": [how.write_chunk(new)], **how.beside(new)} for new in added)
        return b"".join(sse({**head, **new}) for new in (*opening, *written))

    def failed(self, error: ApiError) -> bytes:
        """The error as an event."""
        return sse(error.body())


def _joined(parts: list[Choice]) -> Choice:
    """One choice, from its parts in order."""
    first, last = parts[0], parts[-1]
    positions = None
    if first.positions is not None:
        positions = [position for part in parts for position in part.positions or ()]
    return Choice(
        first.index,
        first.num_alternatives,
        "".join(part.text for part in parts),
        positions,
        finish_reason=last.finish_reason,
        calls=[call for part in parts for call in part.calls],
        as_function=first.as_function,
        reasoning="".join(part.reasoning for part in parts),
        of_prompt=first.of_prompt,
        ids=UNSET if first.ids is UNSET else [one for part in parts for one in part.ids or ()],
    )
