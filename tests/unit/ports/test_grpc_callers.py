"""Callers of the gRPC port: their keys, limits and deadlines."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2

from generator.models_yaml.server_settings import Limits
from hf_triton.ports import bodies
from hf_triton.ports.grpc import calls
from hf_triton.ports.settings import Access, Caller
from tests.support import http2_frames as h2
from tests.unit.ports.grpc_ports import grpc_port

HEADERS = [
    *((b":method", b"POST"), (b":scheme", b"http"), (b":authority", b"x")),
    (b":path", b"/inference.GRPCInferenceService/ModelInfer"),
    *((b"te", b"trailers"), (b"content-type", b"application/grpc")),
]
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
        await asyncio.sleep(0.4)
        async with grpc.aio.insecure_channel(triton.address) as channel:
            other = channel.unary_unary("/inference.GRPCInferenceService/ServerLive")
            assert (await refusal(other(b"")))[0] == grpc.StatusCode.UNAVAILABLE
        await call.read()
        await call.write(request)
        assert [(await call.read()).infer_response.id for _ in range(2)] == ["0", "1"]
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF


@pytest.mark.parametrize(
    "model, config, order",
    [
        ("m", 'name: "m"', ["1", "2"]),
        ("m_stream", "model_transaction_policy { decoupled: true }", ["2", "1"]),
        ("m", "{", ["2", "1"]),  # not known: no answer waits for another
    ],
)
async def test_requests_of_a_stream_are_answered_in_turn_where_each_has_one_answer(
    model: str, config: str, order: list[str], tmp_path: Path
) -> None:
    (tmp_path / model).mkdir()
    (tmp_path / model / "config.pbtxt").write_text(config)
    slow, other = (service_pb2.ModelInferRequest(model_name=model, id=one) for one in "12")
    slow.parameters["slow"].bool_param = True
    async with grpc_port(tmp_path) as (_, stub):
        answers = stub.ModelStreamInfer(iter((slow, other)))
        assert [one.infer_response.id async for one in answers] == order


async def test_messages_that_do_not_end_fill_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "ALL_MIB", 1)
    async with grpc_port(tmp_path, access=Access(max_body_mib=1)) as (triton, stub):
        host, _, number = triton.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(number))
        writer.write(h2.PREFACE + h2.settings_frame({h2.INITIAL_WINDOW_SIZE: 2**20}))
        with pytest.raises(ConnectionError):
            await begin_messages(writer)
        assert reader.at_eof() or reader.exception()
        assert await stub.ModelInfer(service_pb2.ModelInferRequest(model_name="m"))


async def begin_messages(writer: asyncio.StreamWriter) -> None:
    head, part = h2.header_block(HEADERS), b"\0" + (2**20).to_bytes(4, "big") + bytes(60_000)
    for stream in range(1, 2001, 2):
        writer.write(h2.header_frames(stream, head))
        for start in range(0, len(part), h2.MAX_FRAME_BYTES):
            piece = part[start : start + h2.MAX_FRAME_BYTES]
            writer.write(h2.frame(h2.DATA, 0, stream, piece))
        await writer.drain()


@pytest.mark.threat("http2")
async def test_bytes_that_drip_are_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the beginning of the protocol comes."""
    monkeypatch.setattr(calls, "HANDSHAKE_MS", 100)
    async with grpc_port(tmp_path) as (triton, _):
        host, _, number = triton.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(number))
        writer.write(h2.PREFACE[:5])
        await asyncio.wait_for(reader.read(), 10)  # to its end
        writer.close()
