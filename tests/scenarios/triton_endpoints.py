"""The endpoints of the scenarios on a real server: HTTP and gRPC, by NVIDIA's own clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from tritonclient.utils import InferenceServerException, np_to_triton_dtype
from wire import Array, Reply, Request

from tests.support.triton import Triton, post

_HTTP_STATUS = {
    "StatusCode.INVALID_ARGUMENT": 400,
    "StatusCode.CANCELLED": 400,
    "StatusCode.NOT_FOUND": 404,
    "StatusCode.INTERNAL": 500,
    "StatusCode.UNIMPLEMENTED": 501,
    "StatusCode.UNAVAILABLE": 503,
    "StatusCode.DEADLINE_EXCEEDED": 504,
}


class _TritonEndpoint:
    """What both have in common: threads, and ``/generate``, which is HTTP's alone."""

    def __init__(self, triton: Triton, timeout_s: float = 60.0) -> None:
        self.triton = triton
        self.timeout_s = timeout_s

    def infer(self, model: str, request: Request) -> Reply:
        raise NotImplementedError

    def infer_together(self, model: str, requests: Sequence[Request]) -> list[Reply]:
        """A thread for each, so that they run together."""
        with ThreadPoolExecutor(len(requests)) as pool:
            return list(pool.map(lambda request: self.infer(model, request), requests))

    def generate(self, model: str, body: Mapping[str, Any] | bytes) -> tuple[int, dict[str, Any]]:
        answer = post(self.triton.url(model, "generate"), body)
        return answer.status, answer.body


class HttpEndpoint(_TritonEndpoint):
    """``/infer``; a client of its own for each call, because its connections belong to a thread."""

    def infer(self, model: str, request: Request) -> Reply:
        with http_client.InferenceServerClient(
            self.triton.http, network_timeout=self.timeout_s
        ) as client:
            return _infer(http_client, client.infer, model, request)


class GrpcEndpoint(_TritonEndpoint):
    """Unary gRPC."""

    def infer(self, model: str, request: Request) -> Reply:
        with grpc_client.InferenceServerClient(self.triton.grpc) as client:
            return _infer(grpc_client, client.infer, model, request, client_timeout=self.timeout_s)


def _infer(
    kind: Any, infer: Callable[..., Any], model: str, request: Request, **options: Any
) -> Reply:
    """The same call of either client; ``kind`` is its module."""
    inputs = [_input(kind, name, array) for name, array in request.tensors.items()]
    names = request.outputs
    outputs = [kind.InferRequestedOutput(name) for name in names] or None
    try:
        result = infer(
            model, inputs, outputs=outputs, parameters=dict(request.parameters), **options
        )
    except InferenceServerException as error:
        return Reply(_status(error), error.message())
    response = result.get_response()
    sent = response["outputs"] if isinstance(response, dict) else response.outputs
    sent_names = [output["name"] if isinstance(output, dict) else output.name for output in sent]
    return Reply(200, outputs={name: result.as_numpy(name) for name in sent_names})


def _input(kind: Any, name: str, array: Array) -> Any:
    tensor = kind.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
    return tensor.set_data_from_numpy(array)


def _status(error: InferenceServerException) -> int:
    status = str(error.status())
    return _HTTP_STATUS.get(status) or int(status)
