"""Who may call the gRPC port, how often, and until when."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2

from generator.spec.access import Limits
from hf_triton.ports.settings import Access, Caller
from tests.unit.ports.grpc_ports import grpc_port

KEY, OTHER = "k" * 20, "l" * 20
CALLERS = (Caller("one", KEY), Caller("two", OTHER, Limits(requests_per_minute=3)))
DENIED = grpc.StatusCode.UNAUTHENTICATED


def with_key(key: str | None) -> tuple[tuple[str, str], ...]:
    return () if key is None else (("authorization", key),)


async def refusal(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), str(caught.value.details())


@pytest.mark.threat("no-key")
@pytest.mark.parametrize("key", [None, "", "Bearer wrong", f"Bearer {KEY}x", KEY])
async def test_a_call_without_a_key_is_refused(key: str | None, tmp_path: Path) -> None:
    request = service_pb2.ModelInferRequest(model_name="x")
    async with grpc_port(tmp_path, access=Access(callers=CALLERS)) as (triton, stub):
        code, details = await refusal(stub.ModelInfer(request, metadata=with_key(key)))
        assert (code, KEY in details) == (DENIED, False)
        # grpc.aio has an error of its own for a request that it could not send any more.
        stream = stub.ModelStreamInfer(iter(()), metadata=with_key(key))
        assert (await refusal(anext(aiter(stream))))[0] == DENIED
        assert not triton.prompts
        health = stub.ServerLive(service_pb2.ServerLiveRequest())  # which the fake has not
        assert (await refusal(health))[0] == grpc.StatusCode.UNIMPLEMENTED


async def test_a_caller_has_their_limits_and_no_other_ones_name(tmp_path: Path) -> None:
    request = service_pb2.ModelInferRequest(model_name="x", id="1")
    async with grpc_port(tmp_path, access=Access(callers=CALLERS)) as (triton, stub):
        for _ in range(3):
            await stub.ModelInfer(request, metadata=with_key(f"bearer {OTHER}"))
        limited = stub.ModelInfer(request, metadata=with_key(f"bearer {OTHER}"))
        assert (await refusal(limited))[0] == grpc.StatusCode.RESOURCE_EXHAUSTED
        right = with_key(f"Bearer {KEY}")
        assert (await stub.ModelInfer(request, metadata=right)).id == "1"
        request.parameters["hf-triton-caller"].string_param = "another"
        named = await refusal(stub.ModelInfer(request, metadata=right))
        assert named[0] == grpc.StatusCode.INVALID_ARGUMENT
        assert len(triton.prompts) == 4


async def test_a_stopped_port_takes_no_call_and_finishes_those_in_flight(tmp_path: Path) -> None:
    request = service_pb2.ModelInferRequest(model_name="m", id="1")
    request.parameters["triton_enable_empty_final_response"].bool_param = True
    async with grpc_port(tmp_path) as (triton, stub):
        triton.num_tokens = 2
        call = stub.ModelStreamInfer()
        await call.write(request)
        await call.read()
        triton.stop.set()
        async with grpc.aio.insecure_channel(triton.address) as channel:
            other = channel.unary_unary("/inference.GRPCInferenceService/ServerLive")
            assert (await refusal(other(b"")))[0] == grpc.StatusCode.UNAVAILABLE
        await call.read()
        await call.write(request)
        assert [(await call.read()).infer_response.id for _ in range(2)] == ["0", "1"]
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
