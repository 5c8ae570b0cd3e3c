"""Sends one request of the soak and says what came back; judges nothing."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import grpc
from tritonclient.grpc import service_pb2_grpc

from perf.load.http import Connection, Response
from tests.server.soak.requests import SoakRequest, grpc_message, http_message

_STATUS = {
    "INVALID_ARGUMENT": 400,
    "CANCELLED": 400,
    "NOT_FOUND": 404,
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
    hung: bool = False


class Client:
    """Callers of one server; an answer that takes longer than ``timeout_s`` counts as hung."""

    def __init__(self, host: str, http_port: int, grpc_port: int, timeout_s: float) -> None:
        self._host, self._http_port, self._timeout_s = host, http_port, timeout_s
        options = [("grpc.use_local_subchannel_pool", 1)]
        address = f"{host}:{grpc_port}"
        self._channels = [grpc.aio.insecure_channel(address, options=options) for _ in range(4)]

    async def close(self) -> None:
        for channel in self._channels:
            await channel.close()

    async def send(self, request: SoakRequest) -> Outcome:
        """Sends it, and takes the answer or leaves."""
        outcome = Outcome()
        ask = self._grpc if request.way.startswith("grpc") else self._http
        try:
            await asyncio.wait_for(ask(request, outcome), self._timeout_s)
        except (TimeoutError, asyncio.TimeoutError):
            outcome.hung = True
        except OSError as error:
            outcome.error = outcome.error or f"the connection ended: {error!r}"
        return outcome

    async def _http(self, request: SoakRequest, outcome: Outcome) -> None:
        loop, message = asyncio.get_running_loop(), http_message(request)
        transport, connection = await loop.create_connection(
            Connection, self._host, self._http_port
        )
        try:
            if request.leave and request.leave.how == "half":
                transport.write(message[: len(message) * 2 // 3])
                await asyncio.sleep(0.01)
                return
            answer = asyncio.ensure_future(connection.post(message))
            if await _stays(request, answer):
                _take_response(answer.result(), outcome)
        finally:
            transport.close()

    async def _grpc(self, request: SoakRequest, outcome: Outcome) -> None:
        channel = self._channels[request.number % len(self._channels)]
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        message, leave = grpc_message(request), request.leave
        deadline_s = leave.after_s if leave and leave.how == "deadline" else None
        if request.way == "grpc_stream":
            call = stub.ModelStreamInfer(_once(message), timeout=deadline_s)
            answer = asyncio.ensure_future(_read_stream(call, outcome))
        else:
            call = stub.ModelInfer(message, timeout=deadline_s)
            answer = asyncio.ensure_future(_read_unary(call, outcome))
        try:
            await _stays(request, answer)
        except grpc.aio.AioRpcError as error:
            outcome.status = _STATUS.get(error.code().name, 500)
            outcome.error = error.details() or error.code().name
        finally:
            call.cancel()


async def _stays(request: SoakRequest, answer: asyncio.Future[Any]) -> bool:
    """Whether the caller was there when its answer came; raises what the answer does."""
    if request.leave and request.leave.how == "close":
        await asyncio.wait([answer], timeout=request.leave.after_s)
        if not answer.done():
            answer.cancel()
            with suppress(asyncio.CancelledError):
                await answer
            return False
    await answer
    return True


async def _once(message: Any) -> AsyncIterator[Any]:
    yield message


async def _read_unary(call: Any, outcome: Outcome) -> None:
    outcome.chunks.append(_chunk_of_grpc(await call))
    outcome.status = 200


async def _read_stream(call: Any, outcome: Outcome) -> None:
    ended = False
    async for response in call:
        if response.error_message:
            outcome.status, outcome.error = _STREAM_ERROR, response.error_message
            continue
        if ended:
            outcome.error = "a response came after the FINAL flag"
        answer = response.infer_response
        if answer.outputs:
            outcome.chunks.append(_chunk_of_grpc(answer))
        ended = answer.parameters["triton_final_response"].bool_param
    if not ended and not outcome.error:
        outcome.error = "the stream ended without the FINAL flag"
    outcome.status = outcome.status or (200 if ended else 0)


def _chunk_of_grpc(response: Any) -> Chunk:
    pairs = zip(response.outputs, response.raw_output_contents, strict=True)
    return {output.name: _elements(output.datatype, raw) for output, raw in pairs}


def _elements(data_type: str, raw: bytes) -> list[Any]:
    if data_type in _FORMATS:
        return [value for (value,) in struct.iter_unpack(f"<{_FORMATS[data_type]}", raw)]
    texts, at = [], 0
    while at < len(raw):
        (length,) = struct.unpack_from("<I", raw, at)
        texts.append(raw[at + 4 : at + 4 + length].decode())
        at += 4 + length
    return texts


def _take_response(response: Response, outcome: Outcome) -> None:
    """An answer of ``/infer``, flat JSON, or its events."""
    if b"text/event-stream" in bytes(response.raw[:500]).lower():
        for event, _ in response.events():
            _take_json(event, outcome)
        failed = bool(outcome.error) and response.status == 200
        outcome.status = _STREAM_ERROR if failed else response.status
    else:
        _take_json(response.body(), outcome)
        outcome.status = response.status


def _take_json(body: bytes, outcome: Outcome) -> None:
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
        head = ("id", "model_name", "model_version")
        outputs = {name: value for name, value in answer.items() if name not in head}
        outcome.chunks.append({k: v if isinstance(v, list) else [v] for k, v in outputs.items()})
