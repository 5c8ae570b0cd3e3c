"""One Triton over gRPC: its models, and what they are asked for."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
from collections.abc import AsyncGenerator, Collection, Iterable, Iterator, Mapping
from contextlib import aclosing
from typing import Any

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from generator.spec.task_sets import COMPLETION_TASKS
from hf_triton.ports.openai.schema.errors import HEAD, ApiError, of_refusal
from hf_triton.ports.openai.schema.request import TensorValue
from hf_triton.ports.openai.triton.tensors import (
    OUTPUTS,
    Chunk,
    ServedModel,
    infer_request,
    read_chunk,
)
from hf_triton.ports.refusal import RefusedError
from hf_triton.ports.retries import UNREACHABLE, RetryCoordinator
from hf_triton.ports.time_limit import timeout
from hf_triton.ports.triton_calls import (
    INFER,
    QUESTION_TIMEOUT_S,
    Asked,
    Metadata,
    TritonCalls,
    is_unreachable,
    triton_channel,
)
from hf_triton.runtime.request.request_parameters import CACHE_SALT, CALLER, TOKENIZER_QUESTION
from hf_triton.tritonserver.triton_texts import NOT_FOUND

_LENGTHS_GOOD_FOR_S = 10.0
_TIMEOUT_S = 1.0  # of a model that is busy, or hangs: the list of models does without
_QUESTION = {"text_input": "-", TOKENIZER_QUESTION: json.dumps({"ask": "tokenize"})}
# Before a text of Triton's or a model's; the header has it.
_LABEL = re.compile(r"\[request id: [^\]]*\] ")
_STATUSES = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.CANCELLED: 503,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 503,
    grpc.StatusCode.DEADLINE_EXCEEDED: 504,
    grpc.StatusCode.UNIMPLEMENTED: 501,
}
_UNAVAILABLE = re.compile(
    r"try again|shutting down|not ready|no available versions|not healthy|unavailable",
    re.IGNORECASE,
)
# The error of a prompt that the model's context does not hold.
_TOO_LONG = re.compile(r"\w+: the prompt has ((\d+).*); this model's context holds (\d+)")
# The error of one that is so long that its tokens are not counted.
_FAR_TOO_LONG = re.compile(
    r"(text_input|messages): (got \d+ characters, allowed: at most \d+(?: where \d+ tokens fit)?)$"
)
_CONTEXT = "context_length_exceeded"
# The error of a tensor that models of another task have.
_NO_INPUT = re.compile(r"unexpected inference input '(\w+)' for model")


@contextlib.contextmanager
def errors_translated() -> Iterator[None]:
    try:
        yield
    except RefusedError as refusal:
        raise of_refusal(refusal) from None
    except grpc.aio.AioRpcError as error:
        if is_unreachable(error):
            raise ApiError(503, UNREACHABLE) from None
        text = _LABEL.sub("", error.details() or "") or f"Triton answers {error.code().name}"
        raise _error(_STATUSES.get(error.code(), 500), text) from None


def of_text(text: str) -> ApiError:
    """The error for the text that a stream ended with."""
    text = _LABEL.sub("", text)
    if HEAD.match(text):
        return _error(400, text)
    if NOT_FOUND.search(text):
        return _error(404, text)
    return _error(503 if _UNAVAILABLE.search(text) else 500, text)


def _error(status: int, text: str) -> ApiError:
    if unknown := _NO_INPUT.search(text):
        is_chat = unknown[1] == "messages"
        why = "reads texts, not chats; send text_input" if is_chat else "takes none"
        return _error(400, f"{unknown[1]}: this model {why}")
    if too_long := _TOO_LONG.match(text):
        return _context_length_exceeded(*too_long.groups())
    if far_too_long := _FAR_TOO_LONG.match(text):
        field, why = far_too_long.groups()
        return ApiError(400, f"{field}: the prompt is too long: {why}", field, _CONTEXT)
    found = HEAD.match(text) if status == 400 else None
    code = "model_not_found" if status == 404 else None
    return ApiError(status, text, found and (found[1] or found[2]), code)


def _context_length_exceeded(got: str, num_tokens: str, most: str) -> ApiError:
    """OpenAI's words and code, and Anthropic's "prompt is too long", by which clients ask for
    less. It is about max_tokens where the prompt alone would fit.
    """
    param = "max_tokens" if int(num_tokens) < int(most) else "text_input"
    more = f"it has {got}" if param == "max_tokens" else f"{num_tokens} tokens > {most} maximum"
    text = (
        f"This model's maximum context length is {most} tokens. However, the prompt is too long: "
        f"{more}. Please reduce the length of the prompt or of the answer."
    )
    return ApiError(400, text, param, _CONTEXT)


class Triton:
    """A Triton's gRPC endpoint. Made and used within one event loop; ``close`` it in the end."""

    def __init__(self, address: str, retries: RetryCoordinator | None = None) -> None:
        self._channel = triton_channel(address)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self._calls = TritonCalls(self._channel, retries or RetryCoordinator())

    async def close(self) -> None:
        await self._calls.close()
        await self._channel.close()

    async def is_live(self) -> bool:
        try:
            request = service_pb2.ServerLiveRequest()
            await self._stub.ServerLive(request, timeout=QUESTION_TIMEOUT_S)
        except grpc.aio.AioRpcError:
            return False
        return True

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
        """A model's ModelConfig; None where it is gone. Raises ApiError."""
        request = service_pb2.ModelConfigRequest(name=model)
        try:
            with errors_translated():
                answer = await self._stub.ModelConfig(request, timeout=QUESTION_TIMEOUT_S)
        except ApiError as error:
            if error.status == 504 or error.message == UNREACHABLE:
                raise
            return None
        return answer.config

    async def generate(
        self,
        model: ServedModel,
        request_id: str,
        inputs: Mapping[str, TensorValue],
        outputs: Iterable[str] = (),
        metadata: Metadata = (),
    ) -> AsyncGenerator[Chunk, None]:
        """The answer's chunks, a single one without streaming. Raises ApiError."""
        # The number of cached tokens is asked for only if it reveals no other caller's prompt.
        is_alone = CACHE_SALT in inputs or CALLER in inputs
        of_cache = ("num_cached_tokens",) if is_alone else ()
        request = infer_request(model, request_id, inputs, (*OUTPUTS, *outputs, *of_cache))
        async with aclosing(self.responses(model, request, metadata)) as responses:
            async for response in responses:
                yield read_chunk(response)

    async def infer(self, request: Any, metadata: Metadata = (), *, is_ours: bool = True) -> Any:
        asked = Asked(request.SerializeToString(), request.model_name, is_ours)
        with errors_translated():
            answer = await self._calls.unary(INFER, asked, metadata)
        return service_pb2.ModelInferResponse.FromString(answer)

    async def responses(
        self, model: ServedModel, request: Any, metadata: Metadata = ()
    ) -> AsyncGenerator[Any, None]:
        """The ModelInferResponses, a single one without streaming. Raises ApiError."""
        if not model.streams:
            yield await self.infer(request, metadata, is_ours=model.is_ours)
            return
        asked = Asked(request.SerializeToString(), request.model_name, model.is_ours)
        has_answered = False
        with errors_translated():
            async with aclosing(self._calls.stream(asked, metadata)) as responses:
                async for response in responses:
                    found = service_pb2.ModelStreamInferResponse.FromString(response)
                    if found.error_message:
                        raise of_text(found.error_message)
                    has_answered = True
                    yield found.infer_response
        if not has_answered:
            raise ApiError(500, "the model's answer ended early")


class ContextLengths:
    def __init__(self, triton: Triton, retries: RetryCoordinator) -> None:
        """No request waits for a model that ``retries`` says is away, nor loads it."""
        self._triton, self._retries = triton, retries
        self._known: dict[str, tuple[float, int | None]] = {}  # with when they were asked

    async def of(self, models: Collection[ServedModel]) -> Mapping[str, int]:
        """Context lengths in tokens by the models' names in Triton; unknown ones are left out."""
        asked = {one.triton_name: one for one in models if one.task in COMPLETION_TASKS}
        self._known = {name: one for name, one in self._known.items() if self._is_good(name, *one)}
        unknown = asked.keys() - self._known
        here = [name for name in unknown if not self._retries.model(name).is_coming]
        await asyncio.gather(*(self._ask(asked[name]) for name in here))
        known = ((name, self._known[name][1]) for name in asked if name in self._known)
        return {name: length for name, length in known if length is not None}

    def _is_good(self, name: str, asked_at_s: float, length: int | None) -> bool:
        """A question counts as a request and would keep a model loaded: once for each load."""
        told = self._retries.model(name)
        if told.residence and length is not None:
            return not told.is_coming
        return asked_at_s > time.monotonic() - _LENGTHS_GOOD_FOR_S

    async def _ask(self, model: ServedModel) -> None:
        # The next caller does not wait for the same answer.
        self._known[model.triton_name] = (time.monotonic(), None)
        chunks = self._triton.generate(model, "", _QUESTION)
        with contextlib.suppress(ApiError, TimeoutError, asyncio.TimeoutError):
            async with timeout(_TIMEOUT_S), aclosing(chunks):
                told = [json.loads(chunk.texts[0]) async for chunk in chunks]
            self._known[model.triton_name] = (time.monotonic(), int(told[0]["max_model_len"]))
