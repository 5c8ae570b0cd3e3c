"""The endpoints of the scenarios on a real server: HTTP and gRPC, by NVIDIA's own clients."""

from __future__ import annotations

import contextlib
import json
import queue
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from tritonclient.utils import InferenceServerException, np_to_triton_dtype
from wire import Array, Reply, Request, strings

from tests.scenarios.metrics import SETTLED_S
from tests.support.triton import Triton, post, post_for_events

_HTTP_STATUS = {
    "StatusCode.INVALID_ARGUMENT": 400,
    "StatusCode.CANCELLED": 400,
    "StatusCode.NOT_FOUND": 404,
    "StatusCode.INTERNAL": 500,
    "StatusCode.UNIMPLEMENTED": 501,
    "StatusCode.UNAVAILABLE": 503,
    "StatusCode.DEADLINE_EXCEEDED": 504,
}
_STREAM_ERROR = 400  # an error in a stream is its text alone
_OUTPUT_TYPES = {
    "cumulative_logprob": np.float32,
    **dict.fromkeys(("num_input_tokens", "num_output_tokens"), np.uint32),
}


class _TritonEndpoint:
    """Code of both: threads, and the endpoints that are HTTP's alone."""

    settled_s = SETTLED_S

    def __init__(self, triton: Triton, timeout_s: float = 180.0) -> None:
        self.triton = triton
        self.timeout_s = timeout_s

    def infer(self, model: str, request: Request) -> Reply:
        raise NotImplementedError

    def stream(self, model: str, request: Request) -> list[Reply]:
        raise NotImplementedError

    def left_stream(self, model: str, request: Request) -> contextlib.AbstractContextManager[Reply]:
        raise NotImplementedError

    def infer_together(self, model: str, requests: Sequence[Request]) -> list[Reply]:
        """A thread for each, so that they run together."""
        with ThreadPoolExecutor(len(requests)) as pool:
            return list(pool.map(lambda request: self.infer(model, request), requests))

    def stream_together(self, model: str, requests: Sequence[Request]) -> list[list[Reply]]:
        with ThreadPoolExecutor(len(requests)) as pool:
            return list(pool.map(lambda request: self.stream(model, request), requests))

    def generate(self, model: str, body: Mapping[str, Any] | bytes) -> tuple[int, dict[str, Any]]:
        answer = post(self.triton.url(model, "generate"), body, self.timeout_s)
        return answer.status, answer.body

    def generate_stream(
        self, model: str, body: Mapping[str, Any] | bytes
    ) -> tuple[int, list[dict[str, Any]]]:
        return post_for_events(self.triton.url(model, "generate_stream"), body, self.timeout_s)

    @contextlib.contextmanager
    def cancelled_infer(self, model: str, request: Request) -> Iterator[Callable[[], bool]]:
        """By gRPC: a server of 24.10 does not notice that a client of ``/infer`` has gone."""
        answers: list[Any] = []
        with grpc_client.InferenceServerClient(self.triton.grpc) as client:
            inputs, outputs = _inputs_and_outputs(grpc_client, request)
            call = client.async_infer(
                model,
                inputs,
                callback=lambda result, error: answers.append(error or result),
                outputs=outputs,
                parameters=dict(request.parameters),
            )
            yield lambda: bool(answers)
            call.cancel()


class HttpEndpoint(_TritonEndpoint):
    """``/infer`` and ``/generate_stream``; a client of its own for each call, because its
    connections belong to a thread.
    """

    def infer(self, model: str, request: Request) -> Reply:
        with http_client.InferenceServerClient(
            self.triton.http, network_timeout=self.timeout_s
        ) as client:
            return _infer(http_client, client.infer, model, request)

    def stream(self, model: str, request: Request) -> list[Reply]:
        status, events = self.generate_stream(model, _flat_json(request))
        return [_reply_of_event(status, event) for event in events]

    @contextlib.contextmanager
    def left_stream(self, model: str, request: Request) -> Iterator[Reply]:
        body = _flat_json(request)
        head = (
            f"POST /v2/models/{model}/generate_stream HTTP/1.1\r\n"
            f"Host: triton\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        address = ("127.0.0.1", self.triton.server.listen.http_port)
        with socket.create_connection(address, timeout=self.timeout_s) as connection:
            connection.sendall(head.encode() + body)
            with connection.makefile("rb") as lines:
                status = int(lines.readline().split()[1])
                event = next(line for line in lines if line.startswith(b"data: "))
            yield _reply_of_event(status, json.loads(event.removeprefix(b"data: ")))


class GrpcEndpoint(_TritonEndpoint):
    """Unary gRPC, and a gRPC stream for each streaming request."""

    def infer(self, model: str, request: Request) -> Reply:
        with grpc_client.InferenceServerClient(self.triton.grpc) as client:
            return _infer(grpc_client, client.infer, model, request, client_timeout=self.timeout_s)

    def stream(self, model: str, request: Request) -> list[Reply]:
        with self._started_stream(model, request) as (_, arrived):
            replies, final = [], False
            while not final:
                reply, final = arrived.get(timeout=self.timeout_s)
                replies.append(reply)
            assert arrived.empty(), "a response came after the FINAL flag"
        return replies

    @contextlib.contextmanager
    def left_stream(self, model: str, request: Request) -> Iterator[Reply]:
        with self._started_stream(model, request) as (client, arrived):
            yield arrived.get(timeout=self.timeout_s)[0]
            client.stop_stream(cancel_requests=True)

    @contextlib.contextmanager
    def _started_stream(
        self, model: str, request: Request
    ) -> Iterator[tuple[Any, queue.SimpleQueue[tuple[Reply, bool]]]]:
        """The client, and the replies as they come, each with its FINAL flag; an error ends too.

        Without empty responses asked for, a FINAL flag that came alone would never be seen.
        """
        arrived: queue.SimpleQueue[tuple[Reply, bool]] = queue.SimpleQueue()

        def arrive(result: Any, error: Any) -> None:
            arrived.put(
                (Reply(_STREAM_ERROR, error.message()), True)
                if error
                else (
                    _reply_of_result(result),
                    result.get_response().parameters["triton_final_response"].bool_param,
                )
            )

        with grpc_client.InferenceServerClient(self.triton.grpc) as client:
            client.start_stream(arrive)
            inputs, outputs = _inputs_and_outputs(grpc_client, request)
            client.async_stream_infer(
                model,
                inputs,
                outputs=outputs,
                parameters=dict(request.parameters),
                enable_empty_final_response=True,
            )
            yield client, arrived


def _infer(
    kind: Any, infer: Callable[..., Any], model: str, request: Request, **options: Any
) -> Reply:
    """The same call of either client; ``kind`` is its module."""
    inputs, outputs = _inputs_and_outputs(kind, request)
    try:
        result = infer(
            model, inputs, outputs=outputs, parameters=dict(request.parameters), **options
        )
    except InferenceServerException as error:
        return Reply(_status(error), error.message())
    return _reply_of_result(result)


def _reply_of_result(result: Any) -> Reply:
    response = result.get_response()
    sent = response["outputs"] if isinstance(response, dict) else response.outputs
    sent_names = [output["name"] if isinstance(output, dict) else output.name for output in sent]
    return Reply(200, outputs={name: result.as_numpy(name) for name in sent_names})


def _inputs_and_outputs(kind: Any, request: Request) -> tuple[list[Any], list[Any] | None]:
    inputs = [_input(kind, name, array) for name, array in request.tensors.items()]
    return inputs, [kind.InferRequestedOutput(name) for name in request.outputs] or None


def _input(kind: Any, name: str, array: Array) -> Any:
    tensor = kind.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
    return tensor.set_data_from_numpy(array)


def _flat_json(request: Request) -> bytes:
    """The body that means the same; it has no place for a list of outputs."""
    assert not request.outputs, "/generate_stream takes no list of outputs"
    body: dict[str, Any] = dict(request.parameters)
    for name, array in request.tensors.items():
        values = array.flatten().tolist()
        body[name] = [
            value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value
            for value in values
        ]
    return json.dumps(body, ensure_ascii=False).encode("utf-8", "surrogateescape")


def _reply_of_event(status: int, event: Mapping[str, Any]) -> Reply:
    """Outputs flat, because events do not tell their shapes."""
    if "error" in event:
        return Reply(_STREAM_ERROR if status == 200 else status, str(event["error"]))
    outputs = {}
    for name, value in event.items():
        if name not in ("model_name", "model_version", "id"):
            values = value if isinstance(value, list) else [value]
            data_type = _OUTPUT_TYPES.get(name)
            outputs[name] = np.array(values, data_type) if data_type else strings(*values)
    return Reply(200, outputs=outputs)


def _status(error: InferenceServerException) -> int:
    status = str(error.status())
    return _HTTP_STATUS.get(status) or int(status)
