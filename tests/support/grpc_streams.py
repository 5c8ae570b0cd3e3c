"""What gRPC clients send and read, for those that are built on NVIDIA's tritonclient.

Knows the client library; knows no client in particular.
"""

from __future__ import annotations

import queue
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tritonclient.grpc as grpc_client
from tritonclient.utils import np_to_triton_dtype

from tests.support.triton import Triton

TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Response:
    """One response of a stream. ``message`` is the protobuf, ``final`` its FINAL flag."""

    result: Any

    @property
    def message(self) -> Any:
        return self.result.get_response()

    @property
    def final(self) -> bool:
        """A KeyError where the flag is missing: LlamaIndex's callback would die of it."""
        assert "triton_final_response" in self.message.parameters
        return bool(self.message.parameters["triton_final_response"].bool_param)

    def outputs(self) -> dict[str, Any]:
        """Every output that was sent, by name."""
        return {output.name: self.result.as_numpy(output.name) for output in self.message.outputs}


def tensors(arrays: Mapping[str, Any]) -> list[Any]:
    """The inputs in the order they are given; a list of texts is BYTES."""
    inputs = []
    for name, values in arrays.items():
        array = values if isinstance(values, np.ndarray) else np.array(values, dtype=np.object_)
        tensor = grpc_client.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        inputs.append(tensor.set_data_from_numpy(array))
    return inputs


def stream(
    triton: Triton, model: str, arrays: Mapping[str, Any], *outputs: str, **options: Any
) -> list[Response]:
    """All responses of one request on a stream of its own; fails where an error is among them."""
    arrived: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()
    with grpc_client.InferenceServerClient(triton.grpc) as client:
        client.start_stream(lambda result, error: arrived.put((result, error)))
        client.async_stream_infer(
            model,
            tensors(arrays),
            outputs=[grpc_client.InferRequestedOutput(name) for name in outputs] or None,
            **options,
        )
        responses: list[Response] = []
        while not responses or not responses[-1].final:
            result, error = arrived.get(timeout=TIMEOUT_S)
            assert error is None, error
            responses.append(Response(result))
    return responses
