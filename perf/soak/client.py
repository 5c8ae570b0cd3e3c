"""Sends one request of the soak and says what came back; judges nothing.

Plain HTTP/1.1 over a connection for each request, and gRPC's own stubs: so that a message can be
broken and a caller can leave at any point.
"""

from __future__ import annotations

import asyncio
import json
import struct
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import grpc
from tritonclient.grpc import service_pb2_grpc

from perf.soak.request import HTTP_WAYS, HttpMessage, SoakRequest
from perf.soak.wire import grpc_message, http_message

MOST_BYTES = 64 * 2**20
_STATUS = {
    "INVALID_ARGUMENT": 400,
    "CANCELLED": 400,
    "NOT_FOUND": 404,
    "INTERNAL": 500,
    "UNIMPLEMENTED": 501,
    "UNAVAILABLE": 503,
    "DEADLINE_EXCEEDED": 504,
}
_STREAM_ERROR = 400  # an error in a stream is its text alone
_FORMATS = {"FP32": "f", "UINT32": "I"}

Chunk = dict[str, list[Any]]  # output name -> its elements, flat


@dataclass
class Outcome:
    """What a caller saw. ``status`` 0: it left, or the connection ended without an answer."""

    status: int = 0
    error: str = ""
    chunks: list[Chunk] = field(default_factory=list)
    seconds: float = 0.0
    hung: bool = False


class Left(Exception):  # noqa: N818
    """The caller goes away, as planned."""


class Client:
    """Callers of one server; an answer that takes longer than ``timeout_s`` counts as hung."""

    def __init__(self, host: str, http_port: int, grpc_port: int, timeout_s: float) -> None:
        self.host, self.http_port, self.timeout_s = host, http_port, timeout_s
        options = [
            ("grpc.max_receive_message_length", MOST_BYTES),
            ("grpc.use_local_subchannel_pool", 1),
        ]
        target = f"{host}:{grpc_port}"
        self.channels = [grpc.aio.insecure_channel(target, options=options) for _ in range(4)]

    async def close(self) -> None:
        for channel in self.channels:
            await channel.close()

    async def send(self, request: SoakRequest, timeout_s: float | None = None) -> Outcome:
        """Sends it, and takes the answer or leaves; ``timeout_s`` instead of its callers' own."""
        outcome, started = Outcome(), time.monotonic()
        ask = self._http if request.way in HTTP_WAYS else self._grpc
        try:
            await asyncio.wait_for(ask(request, outcome), timeout_s or self.timeout_s)
        except Left:
            outcome.status = outcome.status or 0
        except (TimeoutError, asyncio.TimeoutError):
            outcome.hung = True
        outcome.seconds = time.monotonic() - started
        return outcome

    async def _http(self, request: SoakRequest, outcome: Outcome) -> None:
        message = http_message(request)
        try:
            reader, writer = await asyncio.open_connection(self.host, self.http_port, limit=2**20)
        except OSError as error:
            outcome.error = f"no connection: {error}"
            return
        try:
            await self._exchange(request, message, reader, writer, outcome)
        except (OSError, asyncio.IncompleteReadError) as error:
            outcome.error = outcome.error or f"the connection ended: {error!r}"
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def _exchange(
        self,
        request: SoakRequest,
        message: HttpMessage,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        outcome: Outcome,
    ) -> None:
        packed, leave = message.packed(), request.leave
        if leave and leave.how == "half":
            writer.write(packed[: len(packed) * 2 // 3])
            await writer.drain()
            raise Left
        writer.write(packed)
        await writer.drain()
        answer = asyncio.ensure_future(
            _read_answer(reader, outcome, leave.after_chunks if leave else 0)
        )
        if leave and not leave.after_chunks:
            await asyncio.wait([answer], timeout=leave.after_s)
        await _ended(answer, leaves=bool(leave and not leave.after_chunks))

    async def _grpc(self, request: SoakRequest, outcome: Outcome) -> None:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(
            self.channels[request.number % len(self.channels)]
        )
        message, leave = grpc_message(request), request.leave
        deadline_s = leave.after_s if leave and leave.how == "deadline" else None
        streams = request.way == "grpc_stream"
        if streams:
            call = stub.ModelStreamInfer(_once(message), timeout=deadline_s)
            answer = asyncio.ensure_future(_read_stream(call, outcome, leave))
        else:
            call = stub.ModelInfer(message, timeout=deadline_s)
            answer = asyncio.ensure_future(_read_unary(call, outcome))
        leaves = bool(leave and leave.how == "close" and not leave.after_chunks)
        if leave and leaves:
            await asyncio.wait([answer], timeout=leave.after_s)
        try:
            await _ended(answer, leaves=leaves)
        except grpc.aio.AioRpcError as error:
            outcome.status = _STATUS.get(error.code().name, 500)
            outcome.error = error.details() or error.code().name
        finally:
            call.cancel()


async def _ended(answer: asyncio.Future[None], *, leaves: bool) -> None:
    """The end of ``answer``; a caller that leaves does not wait for it."""
    if leaves and not answer.done():
        answer.cancel()
        with suppress(asyncio.CancelledError):
            await answer
        raise Left
    await answer


async def _once(message: Any) -> AsyncIterator[Any]:
    yield message


async def _read_unary(call: Any, outcome: Outcome) -> None:
    response = await call
    outcome.chunks.append(_chunk_of_grpc(response))
    outcome.status = 200


async def _read_stream(call: Any, outcome: Outcome, leave: Any) -> None:
    ended = False
    async for response in call:
        if response.error_message:
            outcome.status, outcome.error = _STREAM_ERROR, response.error_message
            continue
        answer = response.infer_response
        if ended:
            outcome.error = "a response came after the FINAL flag"
        if answer.outputs:
            outcome.chunks.append(_chunk_of_grpc(answer))
        ended = answer.parameters["triton_final_response"].bool_param
        if leave and leave.after_chunks and len(outcome.chunks) >= leave.after_chunks:
            raise Left
    if not ended and not outcome.error:
        outcome.error = "the stream ended without the FINAL flag"
    outcome.status = outcome.status or (200 if ended else 0)


def _chunk_of_grpc(response: Any) -> Chunk:
    chunk: Chunk = {}
    for output, raw in zip(response.outputs, response.raw_output_contents, strict=True):
        chunk[output.name] = _elements(output.datatype, raw)
    return chunk


def _elements(data_type: str, raw: bytes) -> list[Any]:
    if data_type in _FORMATS:
        return [value for (value,) in struct.iter_unpack(f"<{_FORMATS[data_type]}", raw)]
    texts, at = [], 0
    while at < len(raw):
        (length,) = struct.unpack_from("<I", raw, at)
        texts.append(raw[at + 4 : at + 4 + length].decode())
        at += 4 + length
    return texts


async def _read_answer(reader: asyncio.StreamReader, outcome: Outcome, leave_after: int) -> None:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in head[1:] if ": " in line)
    status = int(head[0].split()[1])
    if headers.get("content-type", "").startswith("text/event-stream"):
        await _read_events(reader, headers, status, outcome, leave_after)
        return
    body = b"".join([piece async for piece in _pieces(reader, headers)])
    outcome.status = status
    _take_json(body, outcome)


async def _pieces(reader: asyncio.StreamReader, headers: dict[str, str]) -> AsyncIterator[bytes]:
    """The body, chunk by chunk or whole."""
    if "chunked" not in headers.get("transfer-encoding", ""):
        yield await reader.readexactly(int(headers.get("content-length", "0")))
        return
    while length := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
        piece = await reader.readexactly(length + 2)
        yield piece[:-2]
    await reader.readuntil(b"\r\n")


async def _read_events(
    reader: asyncio.StreamReader,
    headers: dict[str, str],
    status: int,
    outcome: Outcome,
    leave_after: int,
) -> None:
    buffer = b""
    async for piece in _pieces(reader, headers):
        *events, buffer = (buffer + piece).split(b"\n\n")
        for event in events:
            _take_json(event.removeprefix(b"data: "), outcome)
        if leave_after and len(outcome.chunks) >= leave_after:
            raise Left
    if buffer.strip():
        outcome.error = outcome.error or "an event was cut"
    outcome.status = _STREAM_ERROR if outcome.error and status == 200 else status


def _take_json(body: bytes, outcome: Outcome) -> None:
    """An answer of ``/infer``, or an event, or an error."""
    try:
        answer = json.loads(body)
    except ValueError:
        outcome.error = body.decode("utf-8", "replace")[:400] or "an empty body"
        return
    if "error" in answer:
        outcome.error = str(answer["error"]) or "an empty error"
    elif "outputs" in answer:
        outcome.chunks.append({output["name"]: output["data"] for output in answer["outputs"]})
    else:
        outputs = {
            k: v for k, v in answer.items() if k not in ("id", "model_name", "model_version")
        }
        outcome.chunks.append({k: v if isinstance(v, list) else [v] for k, v in outputs.items()})
