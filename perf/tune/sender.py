"""The load generator, a process of its own: reads what to send as JSON from stdin, keeps so many
callers busy against one model, prints a JSON line for each answer.

It takes any model: bodies come ready-made, tokens are those that the answers report.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from itertools import count
from typing import Any

from perf.load.closed_loop import Answer, AnswerError, Ask, closed_loop
from perf.load.level_process import print_record
from perf.load.measure import Policy
from perf.load.requests import Request
from perf.load.sse import Connection, Response

_SHOWN = 300


@dataclass(frozen=True)
class Job:
    """``path`` is /v2/models/NAME/infer or .../generate_stream; ``bodies`` are sent in turns."""

    host: str
    port: int
    path: str
    bodies: Sequence[str]
    clients: int
    min_requests: int
    min_s: float
    max_s: float

    @property
    def is_stream(self) -> bool:
        return self.path.endswith("/generate_stream")

    def to_json(self) -> str:
        return json.dumps(asdict(self))


@asynccontextmanager
async def connect(job: Job) -> AsyncIterator[Ask]:
    """One kept-open connection."""
    loop = asyncio.get_running_loop()
    transport, connection = await loop.create_connection(Connection, job.host, job.port)
    head = f"POST {job.path} HTTP/1.1\r\nHost: {job.host}\r\nContent-Length: "
    read = read_stream if job.is_stream else read_infer

    async def ask(request: Request) -> Answer:
        body = request.prompt.encode()
        return read(await connection.post(f"{head}{len(body)}\r\n\r\n".encode() + body))

    try:
        yield ask
    finally:
        transport.close()


def read_infer(response: Response) -> Answer:
    """Of /infer. Raises ``AnswerError``."""
    body = response.body()
    _check_status(response, body)
    outputs = {each["name"]: each["data"] for each in json.loads(body)["outputs"]}
    return Answer(sum(map(int, outputs.get("num_output_tokens", ()))))


def read_stream(response: Response) -> Answer:
    """Of /generate_stream: its tokens, and when each piece of it came. Raises ``AnswerError``."""
    if response.status != 200:
        _check_status(response, response.body())
    num_tokens, times = 0, []
    for event, seconds in response.events():
        chunk: dict[str, Any] = json.loads(event)
        if "error" in chunk:
            raise AnswerError(str(chunk["error"])[:_SHOWN])
        num_tokens += _total(chunk.get("num_output_tokens", 0))
        times.append(seconds)
    return Answer(num_tokens, times)


def _total(tokens: int | list[int]) -> int:
    return sum(tokens) if isinstance(tokens, list) else int(tokens)


def _check_status(response: Response, body: bytes) -> None:
    if response.status != 200:
        text = body.decode("utf-8", "replace")[:_SHOWN]
        raise AnswerError(f"HTTP {response.status}: {text}")


def stream(bodies: Sequence[str]) -> Iterator[Request]:
    """The bodies, again and again."""
    return (Request(index, bodies[index % len(bodies)], 0, 0) for index in count())


def main() -> int:
    job = Job(**json.loads(sys.stdin.read()))
    policy = Policy(job.min_requests, job.min_s, job.max_s)
    try:
        asyncio.run(
            closed_loop(lambda: connect(job), job.clients, stream(job.bodies), policy, print_record)
        )
    except (OSError, asyncio.TimeoutError) as error:
        print(f"the server does not answer any more: {str(error) or 'time is up'}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
