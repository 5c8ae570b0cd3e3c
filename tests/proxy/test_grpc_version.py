"""What the gRPC proxy learns of a tritonserver that starts after it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from generator.proxy.grpc_port.triton import GrpcTriton


class OnlyMetadata(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """A tritonserver that says its version."""

    def __init__(self, version: str) -> None:
        self.version = version

    async def ServerMetadata(self, _request: Any, _context: Any) -> Any:  # noqa: N802
        return service_pb2.ServerMetadataResponse(version=self.version)


@pytest.mark.parametrize("version, bears", [("2.51.0", False), ("2.59.0", True), ("3.0", True)])
def test_a_version_is_learned_of_a_server_that_is_up_later(
    version: str, bears: bool, tmp_path: Path
) -> None:
    async def learn() -> bool:
        triton = GrpcTriton(str(tmp_path / "grpc"))
        learning = asyncio.create_task(triton.learn_version())
        await asyncio.sleep(0.2)
        server = grpc.aio.server()
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(OnlyMetadata(version), server)
        server.add_insecure_port(f"unix:{tmp_path / 'grpc'}")
        await server.start()
        await asyncio.wait_for(learning, 60)
        await triton.close()
        await server.stop(0)
        return triton.bears_cancels

    assert asyncio.run(learn()) is bears
