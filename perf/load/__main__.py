"""The load generator against a running server: ``python -m perf.load``; ``process.py`` starts it.

Reads one level as a line of JSON on stdin, and prints a line of JSON for each request as soon as
that is answered. It takes its share of the server's cores, so it reads an answer's meaning when the
answer is complete, and its parent starts it with a lower priority (``nice``) than the server's.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from itertools import cycle

import aiohttp
import uvloop

from hf_triton.ports.time_limit import timeout
from perf.load.process import Level
from perf.load.records import Record
from perf.load.routes import ROUTES, Answer, AnswerError, Response, Sent

LOST = "the load generator lost the server"


async def closed_loop(level: Level, report: Callable[[Record], object]) -> None:
    """Runs ``clients`` callers, each sending its next request when the last one is answered, until
    the level's policy is met and every answer is in. Raises OSError, aiohttp.ClientError,
    asyncio.TimeoutError.
    """
    begin_s, turns, num_sent = time.perf_counter(), cycle(level.sent), 0
    connector = aiohttp.TCPConnector(limit=level.clients)
    wait = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=wait) as session:

        async def caller() -> None:
            nonlocal num_sent
            while not level.policy.enough(num_sent, time.perf_counter() - begin_s):
                num_sent += 1
                async with timeout(level.policy.answer_timeout_s):
                    report(await answered(session, level, next(turns)))

        await asyncio.gather(*(caller() for _ in range(level.clients)))


async def answered(session: aiohttp.ClientSession, level: Level, sent: Sent) -> Record:
    """Sends one request; a connection that breaks or hangs ends the run."""
    sent_s = time.perf_counter()
    arrivals = []
    async with session.post(
        level.url,
        data=sent.body.encode(),
        headers={"Content-Type": "application/json"},
        skip_auto_headers=("Accept-Encoding",),
    ) as response:
        while piece := await response.content.readany():
            arrivals.append((time.perf_counter(), piece))
    done_s, answer, problem = time.perf_counter(), Answer(0), None
    try:
        answer = ROUTES[level.route].read(sent, Response(response.status, arrivals))
    except AnswerError as error:
        problem = str(error)
    tokens, chunk_s = answer.num_output_tokens, answer.chunk_s
    return Record(sent_s, done_s, sent.max_tokens, tokens, problem, chunk_s)


def main() -> None:
    level = Level.from_json(sys.stdin.readline())
    try:
        uvloop.run(closed_loop(level, print_record))
    except asyncio.TimeoutError:
        sys.exit(f"{LOST}: no answer within {level.policy.answer_timeout_s:.0f} s")
    except (OSError, aiohttp.ClientError) as error:
        sys.exit(f"{LOST}: {error}")


def print_record(record: Record) -> None:
    """Prints one line to stdout and flushes it: the parent's progress bar reads it."""
    print(json.dumps(asdict(record)), flush=True)


if __name__ == "__main__":
    main()
