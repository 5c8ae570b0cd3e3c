"""The load generator for embeddings, a process of its own: one level against one service.

Prints a JSON line for each answer; otherwise as ``perf.load.http_load``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from perf.encoders.check import Check, read_references
from perf.encoders.targets import HTTP_TARGETS, EncoderTarget
from perf.load.closed_loop import Answer, AnswerError, Ask
from perf.load.http_load import read_response
from perf.load.level_process import LevelArguments, run_level
from perf.load.requests import Request

HOST = "127.0.0.1"
BUFFER_BYTES = 4 * 2**20  # MLServer's answers are megabytes


@asynccontextmanager
async def connect(port: int, target: EncoderTarget, check: Check) -> AsyncIterator[Ask]:
    """One kept-open connection to the service on ``port``."""
    reader, writer = await asyncio.open_connection(HOST, port, limit=BUFFER_BYTES)
    head = (
        f"POST {target.path} HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\n"
        "Content-Length: "
    )

    async def ask(request: Request) -> Answer:
        body = json.dumps(target.body(request)).encode()
        writer.write(f"{head}{len(body)}\r\n\r\n".encode() + body)
        status, answer = await read_response(reader)
        if status != 200:
            raise AnswerError(f"HTTP {status}: {answer.decode('utf-8', 'replace')[:200]}")
        target.check(request, answer, check)
        return Answer(0)

    try:
        yield ask
    finally:
        writer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--target", choices=sorted(HTTP_TARGETS), required=True)
    parser.add_argument("--references", type=Path, required=True)
    LevelArguments.add_to(parser)
    args = parser.parse_args()
    target, arguments = HTTP_TARGETS[args.target], LevelArguments.of(args)
    check = Check(read_references(args.references, arguments.load), target.min_cosine)
    asyncio.run(run_level(lambda: connect(args.port, target, check), arguments))


if __name__ == "__main__":
    main()
