"""The load generator for streams, a process of its own: one level against a running server.

Prints a JSON line for each answer, with the time at which each of its chunks came. What it costs is
taken from the server's cores, so its parent starts it with a lower priority (``nice``) than the
server's: a chunk may wait for it a little.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from perf.load.closed_loop import Answer, AnswerError, Ask
from perf.load.level_process import LevelArguments, head_of_post, run_until_lost
from perf.load.requests import Request, num_words
from perf.load.sse import Connection, Response
from perf.load.targets import COMPLETIONS_PATH, completions_body, expect, vllm_body

END_OF_EVENTS = b"[DONE]"  # of OpenAI's API
_LENGTH_BYTES = 4  # before each text in a tensor of KServe's
# Many streams of one process: messages are small and come at once, so nothing is to be probed.
_CHANNEL_OPTIONS = (("grpc.http2.bdp_probe", 0),)


@dataclass(frozen=True)
class Events:
    """Answers as server-sent events: where they are asked for, and how they are read."""

    path: str
    body: Callable[[Request], dict[str, Any]]
    read: Callable[[Response, Request], Answer]
    """Raises ``AnswerError``."""


@asynccontextmanager
async def connect_events(host: str, port: int, model: str, events: Events) -> AsyncIterator[Ask]:
    """One kept-open connection."""
    loop = asyncio.get_running_loop()
    transport, connection = await loop.create_connection(Connection, host, port)
    head = head_of_post(events.path.format(model=model), host)

    async def ask(request: Request) -> Answer:
        body = json.dumps(events.body(request)).encode()
        response = await connection.post(f"{head}{len(body)}\r\n\r\n".encode() + body)
        return events.read(response, request)

    try:
        yield ask
    finally:
        transport.close()


def generate_body(request: Request) -> dict[str, Any]:
    """What ``/generate_stream`` takes."""
    return {"text_input": request.prompt, "max_tokens": request.max_tokens, "stream": True}


def read_answer(response: Response, request: Request) -> Answer:
    """The tokens and times of ``/generate_stream``. Raises ``AnswerError``."""
    texts, times = [], []
    for chunk, seconds in chunks(response):
        texts.append(chunk["text_output"])
        times.append(seconds)
    return Answer(expect(num_words("".join(texts)), request.max_tokens), times)


def read_completion(response: Response, request: Request) -> Answer:
    """The tokens and times of ``/v1/completions``, by the server's own count too.

    Raises ``AnswerError``.
    """
    texts, times, num_tokens = [], [], None
    for chunk, seconds in chunks(response):
        num_tokens = (chunk.get("usage") or {}).get("completion_tokens", num_tokens)
        text = "".join(choice["text"] for choice in chunk["choices"])
        if text:  # the last ones carry how it ended, and counts
            texts.append(text)
            times.append(seconds)
    if num_tokens is None:
        raise AnswerError("the stream ended without its count of tokens")
    expect(num_tokens, request.max_tokens)
    return Answer(expect(num_words("".join(texts)), request.max_tokens), times)


def chunks(response: Response) -> Iterator[tuple[dict[str, Any], float]]:
    """What each event says, and when it came (perf_counter). Raises ``AnswerError``."""
    if response.status != 200:
        body = response.body().decode("utf-8", "replace")
        raise AnswerError(f"HTTP {response.status}: {body[:200]}")
    for event, seconds in response.events():
        if event != END_OF_EVENTS:
            chunk = json.loads(event)
            if "error" in chunk:
                raise AnswerError(str(chunk["error"])[:200])
            yield chunk, seconds


@asynccontextmanager
async def connect_grpc(host: str, port: int, model: str) -> AsyncIterator[Ask]:
    """One kept-open ``ModelStreamInfer``, as tritonclient's ``start_stream`` opens it."""
    async with grpc.aio.insecure_channel(f"{host}:{port}", options=_CHANNEL_OPTIONS) as channel:
        call = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelStreamInfer()

        async def ask(request: Request) -> Answer:
            await call.write(infer_request(model, request))
            texts, times, is_last = b"", [], False
            while not is_last:
                response = await call.read()
                if response is grpc.aio.EOF:
                    raise ConnectionError("the server closed the stream")
                times.append(time.perf_counter())
                if response.error_message:
                    raise AnswerError(response.error_message[:200])
                texts += response.infer_response.raw_output_contents[0][_LENGTH_BYTES:]
                is_last = response.infer_response.parameters["triton_final_response"].bool_param
            return Answer(expect(num_words(texts.decode()), request.max_tokens), times)

        try:
            yield ask
        finally:
            await call.done_writing()
            # To its end: a stream cancelled at its last response may keep a model of 24.10 loaded.
            while await call.read() is not grpc.aio.EOF:
                pass


def infer_request(model: str, request: Request) -> service_pb2.ModelInferRequest:
    """A streaming request for the text alone."""
    message = service_pb2.ModelInferRequest(model_name=model)
    message.outputs.add(name="text_output")
    prompt = request.prompt.encode()
    for name, datatype, raw in (
        ("text_input", "BYTES", len(prompt).to_bytes(_LENGTH_BYTES, "little") + prompt),
        ("max_tokens", "INT32", request.max_tokens.to_bytes(4, "little")),
        ("stream", "BOOL", b"\x01"),
    ):
        message.inputs.add(name=name, datatype=datatype, shape=[1])
        message.raw_input_contents.append(raw)
    return message


def streamed_completions_body(request: Request) -> dict[str, Any]:
    """For ``transformers serve``, which counts tokens without being asked to."""
    return {**completions_body(request), "stream": True}


def streamed_vllm_body(request: Request) -> dict[str, Any]:
    """For vLLM, with a last event that counts tokens."""
    return {**vllm_body(request), "stream": True, "stream_options": {"include_usage": True}}


GENERATE_PATH = "/v2/models/{model}/generate_stream"
Connect = Callable[[str, int, str], AbstractAsyncContextManager[Ask]]
EVENTS = {
    "sse": Events(GENERATE_PATH, generate_body, read_answer),
    "completions": Events(COMPLETIONS_PATH, streamed_completions_body, read_completion),
    "vllm": Events(COMPLETIONS_PATH, streamed_vllm_body, read_completion),
}
TRANSPORTS: dict[str, Connect] = {
    **{name: partial(connect_events, events=events) for name, events in EVENTS.items()},
    "grpc": connect_grpc,
}


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--transport", choices=sorted(TRANSPORTS), required=True)
    LevelArguments.add_to(parser)
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    connect = TRANSPORTS[args.transport]
    arguments = LevelArguments.of(args)
    run_until_lost(lambda: connect(args.host, args.port, args.model), arguments)


if __name__ == "__main__":
    main()
