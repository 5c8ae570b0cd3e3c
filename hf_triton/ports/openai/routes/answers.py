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

from generator.spec.runtime_rules import read_counts, read_format
from hf_triton.ports.openai.schema.api import Api, Choice
from hf_triton.ports.openai.schema.errors import ApiError
from hf_triton.ports.openai.schema.logprobs import prompt_logprobs, read_positions
from hf_triton.ports.openai.schema.request import GenerationRequest
from hf_triton.ports.openai.tool_calls.answer_reader import AnswerReader
from hf_triton.ports.openai.triton.tensors import Chunk

Result = TypeVar("Result")
# (which prompt, its chunk)
Chunks = AsyncGenerator[tuple[int, Chunk], None]
DONE = b"data: [DONE]\n\n"
_LARGE_BYTES = 2**18  # take a hundredth of a second and more
# dumps makes one each time; with NaN in it, it would be no JSON.
_JSON = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)
# OpenAI knows nothing that is called timeout: like a full context, it cuts the text off.
_FINISH_REASONS = {"timeout": "length"}


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
            new.token_ids = json.loads(chunk.token_ids[position])
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

    def usage(self) -> dict[str, Any]:
        """Tokens over all prompts and choices; a prompt counts once, however many its choices."""
        prompt = sum(self.prompt_tokens.values())
        completion = sum(choice.num_tokens for choice in self.choices.values())
        cached = {"prompt_tokens_details": {"cached_tokens": sum(self.cached_tokens.values())}}
        reasoning = sum(choice.num_reasoning_tokens for choice in self.choices.values())
        details = {"completion_tokens_details": {"reasoning_tokens": reasoning}}
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            **(cached if self.cached_tokens else {}),
            **(details if reasoning else {}),
        }

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


async def whole_answer(api: Api, answer: Answer, chunks: Chunks) -> dict[str, Any]:
    """The answer as one object. Raises ApiError."""
    parts: dict[int, list[Choice]] = {}
    async with aclosing(chunks):
        async for prompt, chunk in chunks:
            for new in await answer.read(prompt, chunk):
                parts.setdefault(new.index, []).append(new)
    answer.check_complete()
    return await aside(answer.num_bytes, lambda: _whole(api, answer, parts))


def _whole(api: Api, answer: Answer, parts: Mapping[int, list[Choice]]) -> dict[str, Any]:
    choices = [_joined(parts[index]) for index in sorted(parts)]
    return {
        **answer.head(api.object),
        "choices": [api.write(choice) for choice in choices],
        "usage": answer.usage(),
        **api.beside(choices[0]),
    }


async def events(api: Api, answer: Answer, chunks: Chunks) -> AsyncGenerator[bytes, None]:
    """The answer as server-sent events, those of one chunk together. Raises ApiError."""
    head = answer.head(api.chunk_object)
    if answer.asked.include_usage:
        head["usage"] = None  # as OpenAI has it: in every chunk, and null in all but the last
    opening = [{"choices": [new]} for new in api.opening(answer.asked.n)]
    async with aclosing(chunks):
        async for prompt, chunk in chunks:
            added = await answer.read(prompt, chunk)
            if answer.asked.continuous_usage:
                head["usage"] = answer.usage()
            if added or opening:
                yield await aside(chunk.num_bytes, partial(_written, api, head, opening, added))
                opening = []
    answer.check_complete()
    if answer.asked.include_usage:
        yield sse({**head, "choices": [], "usage": answer.usage()}) + DONE
    else:
        yield DONE


def _written(
    api: Api, head: Mapping[str, Any], opening: list[dict[str, Any]], added: list[Choice]
) -> bytes:
    """The events of what a chunk adds, the ``opening`` ones before them."""
    written = ({"choices": [api.write_chunk(new)], **api.beside(new)} for new in added)
    return b"".join(sse({**head, **new}) for new in (*opening, *written))


def sse(value: Mapping[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + to_json(value) + b"\n\n"


def to_json(value: Mapping[str, Any] | Sequence[Any]) -> bytes:
    """Compact UTF-8."""
    return _JSON.encode(value).encode()


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
        token_ids=None
        if first.token_ids is None
        else [token_id for part in parts for token_id in part.token_ids or ()],
    )
