"""The proxy of Triton's ports as a process."""

from __future__ import annotations

import dataclasses
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from generator.spec.access import Limits
from hf_triton.ports.child_process import proxy
from hf_triton.ports.settings import Access
from hf_triton.tritonserver.listen import socket_folder
from tests.support.triton import free_ports, get


def test_a_caller_is_counted_once_over_http_and_grpc() -> None:
    access = Access(limits=Limits(requests_per_minute=3))
    with socket_folder() as sockets:
        listen = dataclasses.replace(free_ports(), sockets=sockets)
        child = proxy(listen, access)
        child.start()
        try:
            url = f"http://{listen.address(listen.http_port)}/v2"
            assert [get(url).status for _ in range(2)] == [503] * 2, "tritonserver is away"
            with grpc.insecure_channel(listen.address(listen.grpc_port)) as channel:
                stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
                assert _code(stub) == grpc.StatusCode.UNAVAILABLE
                assert _code(stub) == grpc.StatusCode.RESOURCE_EXHAUSTED
            assert get(url).status == 429
        finally:
            child.kill()


def _code(stub: Any) -> Any:
    with pytest.raises(grpc.RpcError) as caught:
        stub.ServerMetadata(service_pb2.ServerMetadataRequest())
    return caught.value.code()
