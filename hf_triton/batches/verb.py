"""``hf-triton batch``: asks a server the requests of a file, and appends the answers to another.

What the output has is not asked again, so a run goes on where the one before ended. The exit code
is 1 where a request got an error.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import subprocess
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
from aiohttp import ClientError, ClientSession, ClientTimeout, TCPConnector
from tqdm import tqdm  # type: ignore[import-untyped]

from generator.errors import EXIT_INPUT, EXIT_OK, GeneratorError, ServerError
from generator.flag_values import whole
from generator.models_yaml.reading import load_settings
from generator.python_modules import end_with_parent, free_ports, run_module
from generator.repository.compare import readable_errors
from generator.repository.writing import has_locked
from hf_triton.batches.lines import Line, ask, count_lines, read_line

_KEY, _KEYS = "HF_TRITON_API_KEY", "HF_TRITON_API_KEYS"
_PORTS = ("--openai-port", "--http-port", "--grpc-port", "--metrics-port")
_POLL_S = 0.5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    about = "requests in the format of OpenAI's batches"
    parser.add_argument("input", type=Path, metavar="INPUT.jsonl", help=about)
    about = "file to append answers to; those that it has are not asked again"
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help=about)
    about = "OpenAI port of a running server, such as http://127.0.0.1:9000, whose key is in "
    about += f"{_KEY} (default: starts one with the models of models.yaml)"
    parser.add_argument("--url", help=about)
    about = "how many to send at once (default: 16)"
    parser.add_argument("--concurrent-requests", type=whole(), default=16, metavar="N", help=about)


def run(args: argparse.Namespace) -> int:
    """Raises GeneratorError."""
    with readable_errors():
        texts = args.input.read_bytes().split(b"\n")
    _, mistakes = count_lines(texts)
    if mistakes:
        told = (f"{args.input}:{one.line or 1}: {one.message}" for one in mistakes)
        raise GeneratorError("\n".join(told))
    lines = [read_line(text) for text in texts if text.strip()]
    with contextlib.ExitStack() as stack:
        with readable_errors():
            output = stack.enter_context(args.output.open("a+b", buffering=0))
        if not has_locked(output.fileno()):
            raise GeneratorError(f"{args.output}: another hf-triton batch is writing to it")
        known = _answered(output)
        left = [line for line in lines if line.custom_id not in known]
        if left:
            given = args.url and (args.url.rstrip("/").removesuffix("/v1"), None)
            url, process = given or stack.enter_context(_server(args))
            bar = stack.enter_context(tqdm(total=len(lines), initial=len(lines) - len(left)))
            most = args.concurrent_requests
            asyncio.run(_ask_all(url, iter(left), output, most, process, bar))
        num_failed = sum(not is_good for is_good in _answered(output).values())
    print(f"{args.output}: {len(lines)} answers, {num_failed} of them errors")
    return EXIT_INPUT if num_failed else EXIT_OK


def _answered(output: BinaryIO) -> dict[str, bool]:
    """Whether each request that has an answer succeeded; a last line that was cut is removed."""
    output.seek(0)
    *whole_lines, cut = output.read().split(b"\n")
    output.truncate(output.tell() - len(cut))
    try:
        answers = [msgspec.json.decode(line) for line in whole_lines if line.strip()]
        return {one["custom_id"]: one["response"]["status_code"] == 200 for one in answers}
    except (msgspec.MsgspecError, TypeError, KeyError):
        raise GeneratorError(f"{output.name}: not an output of hf-triton batch") from None


async def _ask_all(
    url: str,
    lines: Iterator[Line],
    output: BinaryIO,
    num_at_once: int,
    process: subprocess.Popen[bytes] | None,
    bar: Any,
) -> None:
    """Asks all, and appends each answer as it comes. ``process`` is the server, if it is ours.
    Raises ServerError where there is none, or it ends.
    """
    key, is_ours = os.environ.get(_KEY), process is not None
    headers = {"Authorization": f"Bearer {key}"} if key and not is_ours else {}
    connector = TCPConnector(limit=0, ssl=not is_ours)  # ours may have another's certificate

    async def is_ready() -> bool:
        """Whether our server has loaded a model: then it knows of the others too."""
        try:
            async with session.get("/v1/models", headers=headers) as found:
                if not is_ours and found.status != HTTPStatus.OK:
                    raise ServerError(f"{url}: answers {found.status}: {await found.text()}")
                return not is_ours or bool((await found.json()).get("data"))
        except (ClientError, OSError) as error:
            if not is_ours:
                raise ServerError(f"{url}: no server is there ({error})") from None
            return False

    async def work() -> None:
        for line in lines:
            _, answer = await ask(session, line, headers)
            output.write(answer)
            bar.update()

    async def work_at_all() -> None:
        while not await is_ready():
            await asyncio.sleep(_POLL_S)
        await asyncio.gather(*(work() for _ in range(num_at_once)))

    async with ClientSession(url, connector=connector, timeout=ClientTimeout()) as session:
        works = asyncio.create_task(work_at_all())
        try:
            while not works.done():
                if process and process.poll() is not None:
                    raise ServerError("the server has ended (see above)")
                await asyncio.wait({works}, timeout=_POLL_S)
            works.result()
        finally:
            works.cancel()


@contextlib.contextmanager
def _server(args: argparse.Namespace) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A server of models.yaml at ports that are free, while the block runs; its OpenAI port's URL
    and its process, which ends with this one.
    """
    ports = free_ports(len(_PORTS))
    listen = [f"{flag}={port}" for flag, port in zip(_PORTS, ports, strict=True)]
    tls = load_settings(Path(args.config)).tls
    places = [f"--config={args.config}", f"--repository={args.repository}", "--health-port=0"]
    process = subprocess.Popen(
        run_module("hf_triton.cli", "serve", *places, *listen),
        env={name: value for name, value in os.environ.items() if name != _KEYS},
        stdout=subprocess.DEVNULL,
        start_new_session=True,  # the terminal's Ctrl-C is for us
        preexec_fn=end_with_parent,
    )
    try:
        yield f"http{'s' * bool(tls)}://127.0.0.1:{ports[0]}", process
    finally:
        process.terminate()
        process.wait()
