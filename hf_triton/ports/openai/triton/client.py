"""One Triton over gRPC: its models, and what they are asked for."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Iterable, Mapping
from typing import Any

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from generator.spec.runtime_rules import CACHE_SALT, CALLER
from hf_triton.ports.abandoned_requests import AbandonedRequests
from hf_triton.ports.openai.schema.errors import ApiError
from hf_triton.ports.openai.schema.request import TensorValue
from hf_triton.ports.openai.triton.catalog import ServedModel
from hf_triton.ports.openai.triton.request_headers import Metadata
from hf_triton.ports.openai.triton.statuses import errors_translated, of_text
from hf_triton.ports.openai.triton.tensors import OUTPUTS, Chunk, infer_request, read_chunk
from hf_triton.ports.repeats import UNREACHABLE, Repeats
from hf_triton.ports.triton_calls import INFER, Asked, TritonCalls
from hf_triton.ports.triton_channel import QUESTION_TIMEOUT_S, triton_channel
from hf_triton.tritonserver.triton_texts import NO_VERSION_IS_READY


class Triton:
    """A Triton's gRPC endpoint. Made and used within one event loop; ``close`` it in the end."""

    def __init__(
        self, address: str, abandoned_requests: str = "", repeats: Repeats | None = None
    ) -> None:
        """``abandoned_requests`` is what the paths of the files begin with by which its models
        learn who has left; empty where it is elsewhere.
        """
        self.address = address
        self._channel = triton_channel(address)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        left = AbandonedRequests(abandoned_requests) if abandoned_requests else None
        self._calls = TritonCalls(self._channel, left, repeats or Repeats())

    async def close(self) -> None:
        """Ends the connection and what still goes on over it."""
        await self._calls.close()
        await self._channel.close()

    async def why_unreachable(self) -> str | None:
        """The reason in one line; None where it answers."""
        try:
            request = service_pb2.ServerLiveRequest()
            await self._stub.ServerLive(request, timeout=QUESTION_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            return " ".join(str(error.details() or error.code().name).split())
        return None

    async def ready_models(self) -> dict[str, list[str]]:
        """Every model of Triton's that is ready, with its versions. Raises ApiError.

        By their statistics, which are open to everybody: the index needs the admin key.
        """
        request = service_pb2.ModelStatisticsRequest()
        with errors_translated():
            found = await self._stub.ModelStatistics(request, timeout=QUESTION_TIMEOUT_S)
        versions: dict[str, list[str]] = {}
        for entry in sorted(found.model_stats, key=lambda entry: (entry.name, int(entry.version))):
            versions.setdefault(entry.name, []).append(entry.version)
        return versions

    async def config(self, model: str) -> Any:
        """A model's ModelConfig; None where it is gone meanwhile. Raises ApiError."""
        found = await self._config(model)
        return None if isinstance(found, str) else found

    async def is_ready(self, model: str) -> bool | None:
        """Whether a version of it is ready; None where Triton knows no such model. Raises
        ApiError.
        """
        found = await self._config(model)
        if isinstance(found, str):
            return False if NO_VERSION_IS_READY in found else None
        return True

    async def _config(self, model: str) -> Any:
        """The ModelConfig, or what Triton says where it has none. Raises ApiError."""
        request = service_pb2.ModelConfigRequest(name=model)
        try:
            with errors_translated():
                answer = await self._stub.ModelConfig(request, timeout=QUESTION_TIMEOUT_S)
        except ApiError as error:
            if error.status == 504 or error.message == UNREACHABLE:
                raise
            return error.message
        return answer.config

    def generate(
        self,
        model: ServedModel,
        request_id: str,
        inputs: Mapping[str, TensorValue],
        *,
        outputs: Iterable[str],
        metadata: Metadata = (),
    ) -> AsyncGenerator[Chunk, None]:
        """The answer's chunks, a single one without streaming, with these ``outputs`` beside those
        of every answer. They raise ApiError.
        """
        request = infer_request(
            model.triton_name,
            request_id,
            inputs,
            batched=model.is_batched,
            outputs=(*OUTPUTS, *outputs, *_of_cache(inputs)),
        )
        return _chunks(self.responses(model, request, metadata))

    def responses(
        self, model: ServedModel, request: Any, metadata: Metadata = ()
    ) -> AsyncGenerator[Any, None]:
        """The ModelInferResponses to a request, one without streaming. They raise ApiError."""
        ask = self._streamed if model.streams else self._at_once
        return ask(request, metadata, is_ours=model.is_ours)

    async def infer(self, request: Any, metadata: Metadata = (), *, is_ours: bool = True) -> Any:
        """A ModelInferRequest's response. Raises ApiError."""
        with errors_translated():
            answer = await self._calls.unary(INFER, _asked(request, is_ours), metadata)
        return service_pb2.ModelInferResponse.FromString(answer)

    async def _at_once(
        self, request: Any, metadata: Metadata, *, is_ours: bool
    ) -> AsyncGenerator[Any, None]:
        yield await self.infer(request, metadata, is_ours=is_ours)

    async def _streamed(
        self, request: Any, metadata: Metadata, *, is_ours: bool
    ) -> AsyncGenerator[Any, None]:
        responses = self._calls.stream(_asked(request, is_ours), metadata)
        with errors_translated():
            async with contextlib.aclosing(responses):
                async for response in responses:
                    found = service_pb2.ModelStreamInferResponse.FromString(response)
                    if found.error_message:
                        raise of_text(found.error_message)
                    yield found.infer_response


def _asked(request: Any, is_ours: bool) -> Asked:
    return Asked(request.SerializeToString(), request.model_name, is_ours)


async def _chunks(responses: AsyncGenerator[Any, None]) -> AsyncGenerator[Chunk, None]:
    async with contextlib.aclosing(responses) as found:
        async for response in found:
            try:
                yield read_chunk(response)
            except ValueError as error:
                raise ApiError(500, str(error)) from None


def _of_cache(inputs: Mapping[str, TensorValue]) -> tuple[str, ...]:
    """The output that tells how much of a prompt was known, where that tells of nobody else."""
    return ("num_cached_tokens",) if CACHE_SALT in inputs or CALLER in inputs else ()
