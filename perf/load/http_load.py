"""The load generator, a process of its own: one level against a running server.

Prints a JSON line for each answer. Plain HTTP/1.1 over kept-open connections: what it costs is
taken from the server's cores, so it does as little as it can, and its parent starts it with a lower
priority (``nice``) than the server's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from perf.load.closed_loop import Answer, AnswerError, Ask
from perf.load.level_process import LevelArguments, head_of_post, run_until_lost
from perf.load.requests import Request
from perf.load.targets import TARGETS, Target


async def read_response(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Status and body of a response that states its ``Content-Length``."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in head[1:] if ": " in line)
    return int(head[0].split()[1]), await reader.readexactly(int(headers["content-length"]))


@asynccontextmanager
async def connect(host: str, port: int, target: Target, model: str) -> AsyncIterator[Ask]:
    """One kept-open connection to the server; ``model`` is in the path where the target's is."""
    reader, writer = await asyncio.open_connection(host, port)
    head = head_of_post(target.path.format(model=model), host)

    async def ask(request: Request) -> Answer:
        body = json.dumps(target.body(request)).encode()
        writer.write(f"{head}{len(body)}\r\n\r\n".encode() + body)
        status, answer = await read_response(reader)
        if status != 200:
            raise AnswerError(f"HTTP {status}: {answer.decode('utf-8', 'replace')[:200]}")
        return Answer(target.num_output_tokens(request, target.outputs(answer)))

    try:
        yield ask
    finally:
        writer.close()


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--target", choices=sorted(TARGETS), required=True)
    parser.add_argument("--model", help="its name on the server; default: the target's")
    LevelArguments.add_to(parser)
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    target = TARGETS[args.target]
    model = args.model or target.name
    arguments = LevelArguments.of(args)
    run_until_lost(lambda: connect(args.host, args.port, target, model), arguments)


if __name__ == "__main__":
    main()
