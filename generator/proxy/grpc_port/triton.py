"""The channel to tritonserver's gRPC socket: what it is asked, and how its errors are told."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from generator.proxy.grpc_port.messages import Output
from generator.proxy.refusal import RefusedError

Metadata = Sequence[tuple[str, "str | bytes"]]

_OPTIONS = [
    # What a model answers is the model's business.
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.absolute_max_metadata_size", 65_536),
    # A Triton that comes back is found within a second, however long it was away.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.use_local_subchannel_pool", 1),
]
_QUESTION_TIMEOUT_S = 5.0
_UNAVAILABLE = "tritonserver does not answer: it is being started; try again"
_TEXT = "BYTES"
# 25.06: before it, Triton dies of calls that are cancelled, or whose deadline comes, as they end.
# https://github.com/triton-inference-server/server/pull/7840 and /8078 and /8220
_BEARS_CANCELS_FROM = (2, 59)


class GrpcTriton:
    """Made and used within one event loop; ``close`` it in the end."""

    def __init__(self, socket: str) -> None:
        self._socket = socket
        self._channel = grpc.aio.insecure_channel(f"unix:{socket}", options=_OPTIONS)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

        self.bears_cancels = False
        self._left: set[Any] = set()

    async def learn_version(self) -> None:
        """Asks whether this Triton bears cancelled calls; none is cancelled where it is unknown."""
        with contextlib.suppress(grpc.aio.AioRpcError, ValueError):
            request = service_pb2.ServerMetadataRequest()
            found = await self._stub.ServerMetadata(request, timeout=_QUESTION_TIMEOUT_S)
            version = tuple(int(part) for part in found.version.split(".")[:2])
            self.bears_cancels = version >= _BEARS_CANCELS_FROM

    async def wait_for(self, call: Any) -> None:
        """Returns when a unary call has ended. Where this is cancelled, so is the call, or left."""
        ended = asyncio.Event()
        call.add_done_callback(lambda _: ended.set())
        try:
            await ended.wait()
        except asyncio.CancelledError:
            if self.bears_cancels:
                call.cancel()
            else:
                self._left.add(call)  # whoever forgets a call cancels it
                call.add_done_callback(self._left.discard)
            raise

    async def close(self) -> None:
        """Ends the connection and what still goes on over it."""
        await self._channel.close()

    def unary(self, method: str) -> Any:
        """Asks one question, and gets one answer, in bytes."""
        return self._channel.unary_unary(method)

    def stream(self, method: str) -> Any:
        """The same with any number of each."""
        return self._channel.stream_stream(method)

    async def check_classified(self, output: Output) -> None:
        """Raises RefusedError for an output that is text: Triton divides by the size of one of its
        elements, which is 0, and ends (before 25.07).
        """
        request = service_pb2.ModelMetadataRequest(name=output.model, version=output.version)
        try:
            model = await self._stub.ModelMetadata(request, timeout=_QUESTION_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            code, details = self.status_of(error)
            status = 503 if code == grpc.StatusCode.UNAVAILABLE else 400
            raise RefusedError(status, details) from None
        datatypes = {found.name: found.datatype for found in model.outputs}
        datatype = datatypes.get(output.name, "")
        if datatype in ("", _TEXT):
            got = f"of type {datatype}" if datatype else "that the model does not have"
            text = f"classification: got output '{output.name[:64]}' {got}; allowed: numbers"
            raise RefusedError(400, text)

    def status_of(self, error: grpc.aio.AioRpcError) -> tuple[grpc.StatusCode, str]:
        """How to tell it to a client, who knows of one server and no socket."""
        code, details = error.code(), error.details() or ""
        if code == grpc.StatusCode.UNAVAILABLE and (
            self._socket in details or details.startswith("Stream removed")
        ):
            return code, _UNAVAILABLE
        return code, details
