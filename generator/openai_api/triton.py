"""One Triton over gRPC: its models, and the generations they are asked for.

A gRPC call that is left, however that happens, is cancelled, and Triton tells the model.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncGenerator, Iterator, Mapping
from typing import Any

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from generator.openai_api.asked import TensorValue
from generator.openai_api.catalog import ServedModel
from generator.openai_api.errors import ApiError
from generator.openai_api.tensors import Chunk, infer_request, read_chunk

_CHANNEL_OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # A Triton that comes back is found within a second, however long it was away.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # A test or a second translator in this process has its own connection.
    ("grpc.use_local_subchannel_pool", 1),
]
# So a stream's error comes as a gRPC status; without, as a text alone.
# https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_generate.md
_STATUS_PLEASE = (("triton_grpc_error", "true"),)
_QUESTION_TIMEOUT_S = 5.0
_UNREACHABLE = "no connection to Triton; try again"
# What gRPC itself says where nobody answers; anything else is the model's own text.
_NO_CONNECTION = re.compile(
    r"failed to connect|socket closed|connection (reset|refused|timed out)|recvmsg|sendmsg|goaway"
    r"|resolution|broken pipe|endpoint|transport|server shutdown|stream removed",
    re.IGNORECASE,
)


class Triton:
    """A Triton's gRPC endpoint. Made and used within one event loop; ``close`` it in the end."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._channel = grpc.aio.insecure_channel(address, options=_CHANNEL_OPTIONS)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    async def close(self) -> None:
        """Ends the connection and what still goes on over it."""
        await self._channel.close()

    async def why_unreachable(self) -> str | None:
        """The reason in one line; None where it answers."""
        try:
            request = service_pb2.ServerLiveRequest()
            await self._stub.ServerLive(request, timeout=_QUESTION_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            return " ".join(str(error.details() or error.code().name).split())
        return None

    async def ready_models(self) -> list[str]:
        """Every model of Triton's that is ready. Raises ApiError."""
        request = service_pb2.RepositoryIndexRequest(ready=True)
        with _errors_translated():
            index = await self._stub.RepositoryIndex(request, timeout=_QUESTION_TIMEOUT_S)
        return sorted({entry.name for entry in index.models})

    async def config(self, model: str) -> Any:
        """A model's ModelConfig; None where it is gone meanwhile. Raises ApiError."""
        request = service_pb2.ModelConfigRequest(name=model)
        try:
            with _errors_translated():
                answer = await self._stub.ModelConfig(request, timeout=_QUESTION_TIMEOUT_S)
        except ApiError as error:
            if error.status == 504 or error.message == _UNREACHABLE:
                raise
            return None
        return answer.config

    async def generate(
        self,
        model: ServedModel,
        request_id: str,
        inputs: Mapping[str, TensorValue],
        *,
        logprobs: bool,
    ) -> AsyncGenerator[Chunk, None]:
        """The answer's chunks, one at least. Raises ApiError."""
        request = infer_request(
            model.triton_name, request_id, inputs, batched=model.is_batched, logprobs=logprobs
        )
        with _errors_translated():
            if not model.streams:
                yield _chunk(await self._stub.ModelInfer(request))
                return
            call = self._stub.ModelStreamInfer(iter((request,)), metadata=_STATUS_PLEASE)
            try:
                async for response in call:
                    if response.error_message:
                        raise ApiError(500, response.error_message)
                    yield _chunk(response.infer_response)
            finally:
                call.cancel()


def _chunk(response: Any) -> Chunk:
    try:
        return read_chunk(response)
    except ValueError as error:
        raise ApiError(500, str(error)) from None


@contextlib.contextmanager
def _errors_translated() -> Iterator[None]:
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise api_error(error.code(), error.details() or "") from None


def api_error(code: Any, details: str) -> ApiError:
    """OpenAI's error for a gRPC status."""
    statuses = {
        grpc.StatusCode.INVALID_ARGUMENT: 400,
        grpc.StatusCode.NOT_FOUND: 404,
        grpc.StatusCode.UNAVAILABLE: 503,
        grpc.StatusCode.CANCELLED: 503,
        grpc.StatusCode.RESOURCE_EXHAUSTED: 503,
        grpc.StatusCode.DEADLINE_EXCEEDED: 504,
        grpc.StatusCode.UNIMPLEMENTED: 501,
    }
    status = statuses.get(code, 500)
    if code == grpc.StatusCode.UNAVAILABLE and _NO_CONNECTION.search(details):
        return ApiError(503, _UNREACHABLE, code="unavailable")
    return _explained(status, details or f"Triton answers {code.name}")


# The model's names for what OpenAI's API calls otherwise.
_OTHER_NAMES = {"text_input": "prompt", "stop_words": "stop"}
_FIELD = re.compile(r"(?:sampling_parameters: )?([a-z_]+)(?=: )")


def _explained(status: int, details: str) -> ApiError:
    """The model's text names the field first: ``temperature: got -1, allowed: ...``."""
    found = _FIELD.match(details) if status == 400 else None
    if found is None:
        codes = {503: "unavailable", 404: "model_not_found"}
        return ApiError(status, details, code=codes.get(status))
    name = _OTHER_NAMES.get(found[1], found[1])
    return ApiError(status, name + details[found.end() :], param=name)
