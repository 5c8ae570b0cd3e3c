"""The load generator: callers who each send the next request when the last is answered, in a
process with a lower priority than the server's. Answers are read when they are complete.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from multiprocessing.connection import Connection
from typing import Any

import aiohttp
import uvloop

from generator.python_modules import end_with_parent
from hf_triton.ports.time_limit import timeout
from perf.load.records import Policy, Record

LOST = "the load generator lost the server"
LOAD_NICENESS = 5
_SHOWN = 300


class AnswerError(Exception):
    """An answer that is an error or wrong; it is counted, and the loop continues."""


@dataclass(frozen=True)
class Sent:
    """A body, and the number of words, a token each, that the answer must have; 0 where that is
    not known.
    """

    body: str
    max_tokens: int = 0


Arrivals = Sequence[tuple[float, bytes]]
"""An answer as received: each chunk of bytes with its time (perf_counter)."""


def documents(
    status: int, arrivals: Arrivals, streams: bool
) -> Iterator[tuple[float, dict[str, Any]]]:
    """A whole answer, or each event with the time of its last byte, as JSON. Raises AnswerError."""
    body = b"".join(data for _, data in arrivals)
    if status != 200:
        raise AnswerError(f"HTTP {status}: {body.decode('utf-8', 'replace')[:_SHOWN]}")
    if not streams:
        yield arrivals[-1][0] if arrivals else 0.0, json.loads(body or b"{}")
        return
    waiting = b""
    for seconds, data in arrivals:
        *whole, waiting = (waiting + data).split(b"\n\n")
        for event in whole:
            if event.startswith(b"data:"):  # else a comment, by which a proxy keeps it open
                chunk = json.loads(event.removeprefix(b"data:"))
                if "error" in chunk:
                    raise AnswerError(str(chunk["error"])[:_SHOWN])
                yield seconds, chunk


def _tensors(document: Mapping[str, Any]) -> tuple[str, int | None]:
    flat = {each["name"]: each["data"] for each in document.get("outputs", ())} or document
    counted, text = flat.get("num_output_tokens"), flat.get("text_output", "")
    counted = sum(map(int, counted)) if isinstance(counted, list) else counted
    return str(text[0] if isinstance(text, list) else text), counted


def _completion(document: Mapping[str, Any]) -> tuple[str, int | None]:
    text = "".join(choice["text"] for choice in document["choices"])
    return text, (document.get("usage") or {}).get("completion_tokens")


@dataclass(frozen=True)
class Route:
    """A path for {model}, and what reads text and token count from one JSON document."""

    path: str
    parse: Callable[[Mapping[str, Any]], tuple[str, int | None]]
    streams: bool = False

    def read(self, sent: Sent, status: int, arrivals: Arrivals) -> tuple[int, Sequence[float]]:
        """The answer's output tokens, and when a stream's chunks came. Raises AnswerError."""
        texts, times, tokens = [], [], list[int]()
        for seconds, document in documents(status, arrivals, self.streams):
            text, counted = self.parse(document)
            texts.append(text)
            tokens += [] if counted is None else [counted]
            if text or counted:
                times.append(seconds)
        for got in (len("".join(texts).split()), *([sum(tokens)] if tokens else [])):
            if sent.max_tokens and got != sent.max_tokens:
                raise AnswerError(f"got {got} output tokens, expected {sent.max_tokens}")
        count = sum(tokens) if tokens else sent.max_tokens
        return count, times if self.streams else ()


ROUTES = {
    "infer": Route("/v2/models/{model}/infer", _tensors),
    "stream": Route("/v2/models/{model}/generate_stream", _tensors, streams=True),
    "completions": Route("/v1/completions", _completion),
}


class LevelError(Exception):
    """The load generator failed; the text is the reason, in one line."""


@dataclass(frozen=True)
class Level:
    """A closed loop: ``clients`` callers send these requests in turns to ``url``."""

    clients: int
    policy: Policy
    sent: Sequence[Sent]
    route: str = ""
    url: str = ""


def records_of(route: str, port: int, model: str, level: Level) -> list[Record]:
    """Runs a level against a route of ``port``; ``model`` is its name there. Raises LevelError."""
    path = ROUTES[route].path.format(model=model)
    level = replace(level, route=route, url=f"http://127.0.0.1:{port}{path}")
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe()
    process = context.Process(target=_send_records, args=(level, sender), daemon=True)
    process.start()
    sender.close()
    try:
        found: list[Record] | str = receiver.recv()
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
    """Ends when the policy is met and every answer is in. Raises OSError, aiohttp.ClientError."""
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
    done_s, problem = time.perf_counter(), None
    tokens: int = 0
    chunk_s: Sequence[float] = ()
    try:
        tokens, chunk_s = ROUTES[level.route].read(sent, response.status, arrivals)
    except AnswerError as error:
        problem = str(error)
    return Record(sent_s, done_s, sent.max_tokens, tokens, problem, chunk_s)
