"""Calls tritonserver's models over gRPC, bytes in and out.

A call is repeated if its model dies or is away: until its answer begins, and a stream that can go
on in another process until it ends. Calls are not cancelled at Triton: their models are told that
nobody waits any more, and the rest of their answers is read.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2

from hf_triton.ports.callers import LEFT, CallName
from hf_triton.ports.refusal import RefusedError
from hf_triton.ports.retries import DIED, UNREACHABLE, InFlight, RetryCoordinator
from hf_triton.runtime.request.request_parameters import CALL

SERVICE = "/inference.GRPCInferenceService/"
INFER, STREAM = f"{SERVICE}ModelInfer", f"{SERVICE}ModelStreamInfer"
Metadata = tuple[tuple[str, str | bytes], ...]
QUESTION_TIMEOUT_S = 5.0

_CHANNEL_OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # A Triton that comes back is found within a second, however long it was away.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # A test or a second port in this process has its own connection.
    ("grpc.use_local_subchannel_pool", 1),
    # Prompts are not for the proxy that the environment may name for what is outside.
    ("grpc.enable_http_proxy", 0),
]
_CLOSE_S = 30.0  # as long as Triton itself waits for what is in flight
# gRPC's own texts if nobody answers; any other is the model's.
_NO_CONNECTION = re.compile(
    r"failed to connect|socket closed|connection (reset|refused|timed out)|recvmsg|sendmsg|goaway"
    r"|resolution|broken pipe|endpoint|transport|server shutdown|stream removed",
    re.IGNORECASE,
)
_ERROR_MESSAGE, _MAX_ERROR_BYTES = b"\x0a", 4096  # field 1 of a ModelStreamInferResponse, a text
_TIMEOUT = "timeout_ms"


def triton_channel(address: str) -> Any:
    """The gRPC connection to tritonserver, used within one event loop; to be closed in the end."""
    return grpc.aio.insecure_channel(address, options=_CHANNEL_OPTIONS)


@dataclass(frozen=True, eq=False)
class Asked:
    """A message for Triton, about ``model``, or "" for what waits for none. ``is_ours``: its model
    runs our library, which can be told that a caller has left: another takes each parameter for
    one of its own. The message is held, to be sent again, for as long as ``keep`` says.
    """

    message: bytes
    model: str = ""
    is_ours: bool = False
    keep: Callable[[], bool] = lambda: True


def parameter(name: str, **value: Any) -> bytes:
    """A field more of a ModelInferRequest, as protobuf joins messages."""
    request = service_pb2.ModelInferRequest(parameters={name: service_pb2.InferParameter(**value)})
    message: bytes = request.SerializeToString()
    return message


def is_unreachable(error: grpc.aio.AioRpcError) -> bool:
    """True if nobody has answered, so that the text is gRPC's own."""
    is_unavailable = error.code() == grpc.StatusCode.UNAVAILABLE
    return is_unavailable and bool(_NO_CONNECTION.search(error.details() or ""))


def error_in(response: bytes) -> str:
    """The error that a ModelStreamInferResponse consists of; "" for an answer."""
    if response[:1] != _ERROR_MESSAGE or len(response) > _MAX_ERROR_BYTES:
        return ""
    try:
        return str(service_pb2.ModelStreamInferResponse.FromString(response).error_message)
    except DecodeError:
        return ""


class TritonCalls:
    """The calls to one Triton. All raise RefusedError, and AioRpcError with Triton's status."""

    def __init__(self, channel: Any, retries: RetryCoordinator) -> None:
        self._channel, self._retries = channel, retries
        self._ending: set[asyncio.Task[None]] = set()
        self._stream = channel.unary_stream(STREAM)

    async def close(self) -> None:
        """Waits a moment for the ends of those that were left."""
        if self._ending:
            await asyncio.wait(self._ending, timeout=_CLOSE_S)

    async def unary(self, method: str, asked: Asked, metadata: Metadata = ()) -> bytes:
        """The answer to a call of a method that answers once."""
        ask, tries = self._channel.unary_unary(method), _Tries(self._retries, asked)
        try:
            while True:
                message = await tries.begin()
                call = ask(message, metadata=metadata)
                try:
                    await tries.until_done(call)
                    answer: bytes = await call
                    return answer
                except (grpc.aio.AioRpcError, _LostError) as error:
                    tries.go_on_after(error)
                finally:
                    if not call.done():
                        self._leave(tries.name, call, call)
        finally:
            tries.in_flight.end()

    async def stream(self, asked: Asked, metadata: Metadata = ()) -> AsyncGenerator[bytes, None]:
        """The ModelStreamInferResponses to a ModelInferRequest; an error is the last."""
        tries = _Tries(self._retries, asked, streams=True)
        try:
            while True:
                call = self._stream(await tries.begin(), metadata=metadata)
                answer = None
                try:
                    while True:
                        answer = asyncio.ensure_future(call.read())
                        await tries.until_done(answer)
                        response = answer.result()
                        if response is grpc.aio.EOF:
                            return
                        # Its last response. (triton_grpc_error, with which it would be a gRPC
                        # status, is of no use: streams that are cancelled beside such errors kill
                        # 24.10.)
                        if (error := error_in(response)) and tries.in_flight.is_retryable(error):
                            break
                        tries.in_flight.passed_on()
                        yield response
                except (grpc.aio.AioRpcError, _LostError) as failure:
                    tries.go_on_after(failure)
                finally:
                    if not call.done():
                        self._leave(tries.name, call, answer)
        finally:
            tries.in_flight.end()

    def _leave(self, name: str, call: Any, answer: Any) -> None:
        """Tells the model that nobody waits for a call, and lets it end."""
        if name:
            self._retries.abandoned.tell(name)
        ending = asyncio.create_task(self._read_to_end(name, call, answer))
        for tasks in (self._ending, LEFT.get(set())):
            tasks.add(ending)
        ending.add_done_callback(self._ending.discard)

    async def _read_to_end(self, name: str, call: Any, answer: Any) -> None:
        """Reads on from the ``answer`` that is awaited."""
        try:
            with contextlib.suppress(grpc.aio.AioRpcError):
                while await answer is not grpc.aio.EOF and not call.done():
                    answer = call.read()
        finally:
            self._retries.abandoned.forget(name)


class _LostError(Exception):
    """The process of the model has died."""


class _Tries:
    """The tries of one request; ``name`` is that by which the model knows the try under way."""

    def __init__(self, retries: RetryCoordinator, asked: Asked, *, streams: bool = False) -> None:
        self._keep, self._is_ours = asked.keep, asked.is_ours
        stream = CallName() if asked.is_ours and streams else ""
        self.name = ""
        self.in_flight = InFlight(
            retries, asked.model, self._lose, _timeout_s_of, stream, asked.message
        )
        self._is_lost = False
        self._waiting: asyncio.Future[Any] | None = None

    async def begin(self) -> bytes:
        """Waits until it may be asked; returns what is sent. Raises RefusedError."""
        self._is_lost = False
        await self.in_flight.wait_until_sendable()
        message: bytes = self.in_flight.payload
        if not self._keep():
            self.in_flight.payload = None
        if self._is_ours:
            self.name = CallName()
            message += parameter(CALL, string_param=self.in_flight.call_text(self.name))
        return message

    async def until_done(self, answer: Any) -> None:
        """Returns when there is an answer; cancelling this leaves the call running, unlike waiting
        for the call itself. Raises _LostError if the model dies before.
        """
        if self._is_lost:
            raise _LostError
        waiting = self._waiting = asyncio.get_running_loop().create_future()

        def end(_: object) -> None:
            if not waiting.done():
                waiting.set_result(None)

        answer.add_done_callback(end)
        await waiting

    def go_on_after(self, error: grpc.aio.AioRpcError | _LostError) -> None:
        """Raises RefusedError, or the error, unless it is to be asked again."""
        if isinstance(error, _LostError):
            if not self.in_flight.may_be_sent_again:
                raise RefusedError(503, DIED) from None
            self.in_flight.lost()
        elif is_unreachable(error):
            if not self.in_flight.is_retryable(UNREACHABLE):
                raise RefusedError(503, UNREACHABLE) from None
        elif not self.in_flight.is_retryable(error.details() or ""):
            raise error

    def _lose(self) -> None:
        self._is_lost = True
        if self._waiting and not self._waiting.done():
            self._waiting.set_exception(_LostError())


def _timeout_s_of(message: bytes) -> float:
    """The timeout that a ModelInferRequest asks for; infinite where it asks for none, or for none
    that is a number.
    """
    request, timeout_ms = service_pb2.ModelInferRequest.FromString(message), 0
    if _TIMEOUT in request.parameters:
        timeout_ms = request.parameters[_TIMEOUT].int64_param
    else:
        for place, tensor in enumerate(request.inputs):
            if tensor.name != _TIMEOUT:
                continue
            if listed := tensor.contents.int_contents:
                timeout_ms = listed[0]
            elif place < len(request.raw_input_contents):
                raw = request.raw_input_contents[place]
                timeout_ms = int.from_bytes(raw[:4], "little", signed=True)
    return timeout_ms / 1000 if timeout_ms > 0 else math.inf
