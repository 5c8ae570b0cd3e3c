"""What the proxy itself asks tritonserver."""

from __future__ import annotations

from typing import Any

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from hf_triton.ports.grpc.messages import Output
from hf_triton.ports.refusal import RefusedError
from hf_triton.ports.repeats import UNREACHABLE
from hf_triton.ports.triton_calls import is_unreachable
from hf_triton.ports.triton_channel import QUESTION_TIMEOUT_S

_NO_METADATA = "classification: tritonserver says nothing of this model"
_TEXT = "BYTES"


class GrpcTriton:
    """Used within the event loop of its channel. Raises RefusedError (503) where nobody answers."""

    def __init__(self, channel: Any) -> None:
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)

    async def is_decoupled(self, model: str) -> bool:
        """Whether a model may answer a request several times; so may one that nobody knows."""
        request = service_pb2.ModelConfigRequest(name=model)
        answer = await _answer(self._stub.ModelConfig, request)
        return answer is None or bool(answer.config.model_transaction_policy.decoupled)

    # 24.10 only: from 25.08 on Triton refuses it.
    async def check_classified(self, output: Output) -> None:
        """Raises RefusedError for an output that is text: Triton divides by the size of one of its
        elements, which is 0, and ends (before 25.08).
        """
        request = service_pb2.ModelMetadataRequest(name=output.model, version=output.version)
        model = await _answer(self._stub.ModelMetadata, request)
        if model is None:
            raise RefusedError(400, _NO_METADATA)
        datatypes = {found.name: found.datatype for found in model.outputs}
        datatype = datatypes.get(output.name, "")
        if datatype in ("", _TEXT):
            got = f"of type {datatype}" if datatype else "that the model does not have"
            text = f"classification: got output '{output.name[:64]}' {got}; allowed: numbers"
            raise RefusedError(400, text)


async def _answer(ask: Any, request: Any) -> Any:
    """None where tritonserver refuses the question."""
    try:
        return await ask(request, timeout=QUESTION_TIMEOUT_S)
    except grpc.aio.AioRpcError as error:
        if is_unreachable(error):
            raise RefusedError(503, UNREACHABLE) from None
        return None
