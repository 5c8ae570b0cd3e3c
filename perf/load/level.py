"""The load generator: callers who each send the next request when the last is answered, in a
process of their own with a lower priority than the server's, whose cores they share. An answer's
meaning is read when the answer is complete.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from multiprocessing.connection import Connection

import aiohttp
import uvloop

from hf_triton.ports.time_limit import timeout
from perf.load.records import Policy, Record
from perf.load.routes import ROUTES, Answer, AnswerError, Response, Sent
from perf.processes import end_with_parent

LOST = "the load generator lost the server"
LOAD_NICENESS = 5


class LevelError(Exception):
    """The load generator failed; the text is the reason, in one line."""


@dataclass(frozen=True)
class Level:
    """One closed-loop load: ``clients`` callers send these requests in turns to ``url``; answers
    are parsed as those of ``route`` (routes.ROUTES).
    """

    clients: int
    policy: Policy
    sent: Sequence[Sent]
    route: str = ""
    url: str = ""


def records_of(route: str, port: int, model: str, level: Level) -> list[Record]:
    """Runs a level against ``port`` of this machine, over one of ``routes.ROUTES``; ``model`` is
    its name there. Raises ``LevelError``.
    """
    path = ROUTES[route].path.format(model=model)
    level = replace(level, route=route, url=f"http://127.0.0.1:{port}{path}")
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_send_records, args=(level, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        found: list[Record] | str = ours.recv()
    except EOFError:
        process.join()
        raise LevelError(f"the load generator ended: exit code {process.exitcode}") from None
    finally:
        process.kill()
        process.join()
    if isinstance(found, str):
        raise LevelError(found)
    return found


def _send_records(level: Level, answer: Connection) -> None:
    """Runs the level; sends its records, or why there are none."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C and ends this process
    end_with_parent(signal.SIGKILL)
    os.nice(LOAD_NICENESS)
    try:
        answer.send(uvloop.run(closed_loop(level)))
    except asyncio.TimeoutError:
        answer.send(f"{LOST}: no answer within {level.policy.answer_timeout_s:.0f} s")
    except (OSError, aiohttp.ClientError) as error:
        answer.send(f"{LOST}: {error}")


async def closed_loop(level: Level) -> list[Record]:
    """Runs the level's callers until its policy is met and every answer is in. Raises OSError,
    aiohttp.ClientError, asyncio.TimeoutError.
    """
    begin_s, turns, num_sent, records = time.perf_counter(), cycle(level.sent), 0, list[Record]()
    connector = aiohttp.TCPConnector(limit=level.clients)
    wait = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=wait) as session:

        async def caller() -> None:
            nonlocal num_sent
            while not level.policy.enough(num_sent, time.perf_counter() - begin_s):
                num_sent += 1
                async with timeout(level.policy.answer_timeout_s):
                    records.append(await answered(session, level, next(turns)))

        await asyncio.gather(*(caller() for _ in range(level.clients)))
    return records


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
