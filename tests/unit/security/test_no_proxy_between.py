"""Requests to a Triton pass by the proxy that the environment names for hosts outside."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from hf_triton.ports.openai.triton.client import Triton
from hf_triton.tritonserver.http_api import load_over_grpc


class Server(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    def ServerLive(self, request: Any, context: Any) -> Any:  # noqa: N802
        return service_pb2.ServerLiveResponse(live=True)

    def RepositoryModelLoad(self, request: Any, context: Any) -> Any:  # noqa: N802
        return service_pb2.RepositoryModelLoadResponse()


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A Triton's, in an environment with a proxy that never answers."""
    server = grpc.server(ThreadPoolExecutor(1))
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(Server(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        for name in ("http_proxy", "grpc_proxy", "https_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.getsockname()[1]}")
        for name in ("no_proxy", "NO_PROXY", "no_grpc_proxy"):
            monkeypatch.delenv(name, raising=False)
        yield f"127.0.0.1:{port}"
        server.stop(0).wait()


@pytest.mark.threat("environment-proxy")
def test_a_model_is_loaded_without_one(address: str) -> None:
    assert load_over_grpc(address, "m") is None


@pytest.mark.threat("environment-proxy")
def test_the_openai_api_asks_without_one(address: str) -> None:
    async def asked() -> bool:
        triton = Triton(address)
        try:
            return await triton.is_live()
        finally:
            await triton.close()

    assert asyncio.run(asked())
