"""Calls of gRPC that are left: tritonserver could die of those that are cancelled, and so the model
is told instead.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2

from generator.models_yaml.server_settings import Limits
from hf_triton.ports import callers
from hf_triton.ports.call_files import AbandonedRequests
from hf_triton.ports.settings import Access
from tests.unit.ports.grpc_ports import grpc_port

LEFT = f"left_{'[0-9a-f]' * 32}"  # beside journals of streams


def asked(model: str, **parameters: bool) -> Any:
    request = service_pb2.ModelInferRequest(model_name=model)
    for name, value in parameters.items():
        request.parameters[name].bool_param = value
    return request


async def becomes(true: Callable[[], Any]) -> bool:
    end_s = time.monotonic() + 60
    while not true() and time.monotonic() < end_s:
        await asyncio.sleep(0.01)
    return bool(true())


@pytest.mark.threat("left-grpc-calls")
@pytest.mark.parametrize("method", ["ModelInfer", "ModelStreamInfer"])
async def test_a_call_that_is_left_is_ended_by_its_model(method: str, tmp_path: Path) -> None:
    async with grpc_port(tmp_path) as (triton, stub):
        triton.supervisor.say_ours()
        request = asked("m", waits=True)
        ask = getattr(stub, method)
        left = [ask(request if method == "ModelInfer" else iter([request])) for _ in range(3)]
        assert await becomes(lambda: triton.num_waiting == 3)
        assert not list(tmp_path.glob(LEFT))
        for call in left:
            call.cancel()
        assert await becomes(lambda: triton.num_left == 3)
        assert await becomes(lambda: not list(tmp_path.glob(LEFT))), "they have ended"
        assert not triton.num_cancelled


@pytest.mark.threat("left-grpc-calls")
async def test_no_stream_is_cancelled_however_many_are_left_with_their_sending_open(
    tmp_path: Path,
) -> None:
    """26.08 dies within seconds of streams that are cancelled once they have answered."""

    async def leave(num_answers: int) -> None:
        call = stub.ModelStreamInfer()
        await call.write(asked("m", waits=True))
        for _ in range(num_answers):
            await call.read()
        call.cancel()

    async with grpc_port(tmp_path) as (triton, stub):
        triton.supervisor.say_ours()
        for _ in range(40):
            await asyncio.gather(*(leave(number % 2) for number in range(50)))
        assert await becomes(lambda: triton.num_left >= 1000 and not triton.num_waiting)
        assert triton.num_cancelled == 0


@pytest.mark.threat("left-grpc-calls")
@pytest.mark.parametrize("ends", [True, False])
async def test_what_is_left_counts_for_its_caller_until_it_ends_or_for_a_minute(
    ends: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(callers, "LEFT_S", 60.0 if ends else 0.5)
    one = Access(limits=Limits(concurrent_requests=1))
    async with grpc_port(tmp_path, access=one) as (triton, stub):
        triton.abandoned_requests, end = str(tmp_path / "end"), tmp_path / "end"
        left = stub.ModelInfer(asked("theirs", waits=True))
        assert await becomes(lambda: triton.num_waiting == 1)
        left.cancel()
        with pytest.raises(grpc.aio.AioRpcError, match="more than 1 requests at once"):
            await stub.ModelInfer(asked("theirs"))
        if ends:
            end.touch()
        assert await is_served_again(stub)
        assert triton.num_waiting == (0 if ends else 1)
        end.touch()


@pytest.mark.threat("left-grpc-calls")
@pytest.mark.parametrize("num_tokens, waits", [(2, True), (80, False)], ids=["", "it is full"])
async def test_a_stream_that_could_go_on_elsewhere_ends_once_it_is_left(
    num_tokens: int, waits: bool, tmp_path: Path
) -> None:
    one = Access(limits=Limits(concurrent_requests=1))
    async with grpc_port(tmp_path, access=one) as (triton, stub):
        triton.supervisor.say_ours()
        triton.num_tokens, triton.piece = num_tokens, bytes(2 if waits else 10**6)
        left = stub.ModelStreamInfer()
        await left.write(asked("m", **({"waits": True} if waits else {})))
        await left.read()
        await asyncio.sleep(0 if waits else 2)  # as much has come as may
        left.cancel()
        assert await is_served_again(stub)
        assert not list(tmp_path.glob(LEFT))


async def is_served_again(stub: Any) -> bool:
    for _ in range(600):
        with contextlib.suppress(grpc.aio.AioRpcError):
            await stub.ModelInfer(asked("theirs"))
            return True
        await asyncio.sleep(0.05)
    return False


async def test_a_model_that_is_not_ours_gets_no_parameter_more(tmp_path: Path) -> None:
    async with grpc_port(tmp_path) as (triton, stub):
        triton.supervisor.tell()
        await stub.ModelInfer(asked("m"))
        triton.supervisor.say_ours()
        for model in ("theirs", "m"):
            await stub.ModelInfer(asked(model))
        assert triton.named == [False, False, True]


def test_a_port_that_can_make_no_file_lets_calls_run_to_their_end(tmp_path: Path) -> None:
    left = AbandonedRequests(f"{tmp_path}/none/left_")
    left.tell("a")
    left.tell("b")
    left.forget("b")
