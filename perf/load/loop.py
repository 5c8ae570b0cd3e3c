"""A closed loop of callers over anything that answers; knows no protocol and no server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from hf_triton.ports.time_limit import timeout
from perf.load.measure import Policy, Record
from perf.load.requests import Request


class AnswerError(Exception):
    """An error or a wrong answer; it is counted, and the loop goes on."""


@dataclass(frozen=True)
class Answer:
    """A right answer: its tokens, and when each piece of a streamed one came (perf_counter)."""

    num_output_tokens: int
    chunk_s: Sequence[float] = ()


Ask = Callable[[Request], Awaitable[Answer]]
"""Sends one request and returns its answer; raises ``AnswerError``."""

Connect = Callable[[], AbstractAsyncContextManager[Ask]]
"""Opens what one request at a time goes through."""

Report = Callable[[Record], object]


async def closed_loop(
    connect: Connect,
    clients: int,
    stream: Iterator[Request],
    policy: Policy,
    report: Report,
) -> None:
    """Run ``clients`` callers, each sending when its last request is answered, until the policy
    has enough and every answer is in. Each answer is reported as it comes.
    """
    begin_s = time.perf_counter()
    num_sent = 0

    async def caller() -> None:
        nonlocal num_sent
        async with connect() as ask:
            while not policy.enough(num_sent, time.perf_counter() - begin_s):
                num_sent += 1
                report(await record(ask, next(stream), policy.answer_timeout_s))

    await asyncio.gather(*(caller() for _ in range(clients)))


async def record(ask: Ask, request: Request, timeout_s: float) -> Record:
    """Ask once and say how it went; a connection that breaks or hangs ends the run instead."""
    sent_s = time.perf_counter()
    answer, problem = Answer(0), None
    try:
        async with timeout(timeout_s):
            answer = await ask(request)
    except AnswerError as error:
        problem = str(error)
    return Record(
        index=request.index,
        sent_s=sent_s,
        done_s=time.perf_counter(),
        max_tokens=request.max_tokens,
        num_output_tokens=answer.num_output_tokens,
        problem=problem,
        chunk_s=answer.chunk_s,
        process_cpu_s=time.process_time(),
    )
