"""What the proxy itself asks tritonserver."""

from __future__ import annotations

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from hf_triton.ports.grpc.messages import Output
from hf_triton.ports.refusal import RefusedError
from hf_triton.ports.triton_channel import QUESTION_TIMEOUT_S, triton_channel

_NO_METADATA = "classification: tritonserver says nothing of this model"
_TEXT = "BYTES"


class GrpcTriton:
    """Made and used within one event loop; ``close`` it in the end."""

    def __init__(self, socket: str) -> None:
        self._channel = triton_channel(f"unix:{socket}")
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    async def close(self) -> None:
        """Ends the connection and what still goes on over it."""
        await self._channel.close()

    # 24.10 only: from 25.08 on Triton refuses it.
    async def check_classified(self, output: Output) -> None:
        """Raises RefusedError for an output that is text: Triton divides by the size of one of its
        elements, which is 0, and ends (before 25.08).
        """
        request = service_pb2.ModelMetadataRequest(name=output.model, version=output.version)
        try:
            model = await self._stub.ModelMetadata(request, timeout=QUESTION_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            is_down = error.code() == grpc.StatusCode.UNAVAILABLE
            raise RefusedError(503 if is_down else 400, _NO_METADATA) from None
        datatypes = {found.name: found.datatype for found in model.outputs}
        datatype = datatypes.get(output.name, "")
        if datatype in ("", _TEXT):
            got = f"of type {datatype}" if datatype else "that the model does not have"
            text = f"classification: got output '{output.name[:64]}' {got}; allowed: numbers"
            raise RefusedError(400, text)
