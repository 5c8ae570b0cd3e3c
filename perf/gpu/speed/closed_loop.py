"""The load of text generation: clients who each send the next request when the last is answered.

Prompts of 64 to 512 tokens, answers of 64 to 256: 370 tokens of keys and values in the end.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass

PROMPT_TOKENS, OUTPUT_TOKENS = (64, 512), (64, 256)
TINY_PROMPT_TOKENS, TINY_OUTPUT_TOKENS = (4, 24), (2, 8)
MOST_TOKENS = PROMPT_TOKENS[1] + OUTPUT_TOKENS[1]
_FIRST_ID, _LAST_ID = 2, 1000  # words of every model's vocabulary

Answer = Callable[[list[int], int], Awaitable[int]]
"""From a prompt and how many tokens are asked for to how many came."""


@dataclass(frozen=True)
class Request:
    """A prompt and how many tokens it asks for."""

    prompt: list[int]
    max_tokens: int


def requests(seed: int, *, tiny: bool = False) -> Iterator[Request]:
    """Endless ones, lengths uniform."""
    draw = random.Random(seed)
    prompts = TINY_PROMPT_TOKENS if tiny else PROMPT_TOKENS
    outputs = TINY_OUTPUT_TOKENS if tiny else OUTPUT_TOKENS
    while True:
        prompt = [draw.randint(_FIRST_ID, _LAST_ID) for _ in range(draw.randint(*prompts))]
        yield Request(prompt, draw.randint(*outputs))


def mean_context(asked: Sequence[Request]) -> float:
    """How many tokens a decoded token attends to, on average."""
    total = sum(one.max_tokens * (len(one.prompt) + (one.max_tokens + 1) / 2) for one in asked)
    return total / sum(one.max_tokens for one in asked)


async def tokens_per_s(answer: Answer, clients: int, asked: Sequence[Request]) -> float:
    """Useful tokens a second while all clients are busy: from when as many requests are answered as
    there are clients to when the last is sent. ``asked`` is three for each client, or more.

    Raises what a request was answered with, and RuntimeError for an answer of another length.
    """
    waiting, ended = iter(asked), []

    async def client() -> None:
        for request in waiting:
            found = await answer(request.prompt, request.max_tokens)
            if found != request.max_tokens:
                raise RuntimeError(f"{found} tokens came, {request.max_tokens} were asked for")
            ended.append((time.perf_counter(), found))

    await asyncio.gather(*(client() for _ in range(clients)))
    window = ended[clients - 1 : len(ended) - clients + 1]
    return sum(tokens for _, tokens in window[1:]) / (window[-1][0] - window[0][0])
