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

from generator.spec.access import Limits
from hf_triton.ports.abandoned_requests import AbandonedRequests
from hf_triton.ports.grpc import calls
from hf_triton.ports.grpc.our_models import OurModels
from hf_triton.ports.settings import Access
from tests.proxy.grpc_ports import Triton, grpc_port


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


async def know_ours(triton: Triton, stub: Any) -> None:
    triton.roles = {"ours": "engine"}
    while True not in triton.named:  # Triton is asked beside the first call
        await stub.ModelInfer(asked("ours"))


@pytest.mark.threat("left-grpc-calls")
@pytest.mark.parametrize("method", ["ModelInfer", "ModelStreamInfer"])
async def test_a_call_that_is_left_is_ended_by_its_model(method: str, tmp_path: Path) -> None:
    async with grpc_port(tmp_path) as (triton, stub):
        await know_ours(triton, stub)
        request = asked("ours", waits=True)
        ask = getattr(stub, method)
        left = [ask(request if method == "ModelInfer" else iter([request])) for _ in range(3)]
        assert await becomes(lambda: triton.num_waiting == 3)
        assert not list(tmp_path.glob("left_*"))
        for call in left:
            call.cancel()
        assert await becomes(lambda: triton.num_left == 3)
        assert await becomes(lambda: not list(tmp_path.glob("left_*"))), "they have ended"
        assert not triton.num_cancelled


@pytest.mark.threat("left-grpc-calls")
async def test_no_stream_is_cancelled_however_many_are_left_with_their_sending_open(
    tmp_path: Path,
) -> None:
    """26.08 dies within seconds of streams that are cancelled once they have answered."""

    async def leave(num_answers: int) -> None:
        call = stub.ModelStreamInfer()
        await call.write(asked("ours", waits=True))
        for _ in range(num_answers):
            await call.read()
        call.cancel()

    async with grpc_port(tmp_path) as (triton, stub):
        await know_ours(triton, stub)
        for _ in range(40):
            await asyncio.gather(*(leave(number % 2) for number in range(50)))
        assert await becomes(lambda: triton.num_left + triton.num_cancelled == 2000)
        assert (triton.num_cancelled, triton.num_waiting) == (0, 0)


@pytest.mark.threat("left-grpc-calls")
@pytest.mark.parametrize("ends", [True, False])
async def test_what_is_left_counts_for_its_caller_until_it_ends_or_for_a_minute(
    ends: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "LEFT_S", 60.0 if ends else 0.0)
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


async def is_served_again(stub: Any) -> bool:
    for _ in range(600):
        with contextlib.suppress(grpc.aio.AioRpcError):
            await stub.ModelInfer(asked("theirs"))
            return True
        await asyncio.sleep(0.05)
    return False


async def test_a_model_that_is_not_ours_gets_no_parameter_more(tmp_path: Path) -> None:
    async with grpc_port(tmp_path) as (triton, stub):
        triton.roles = {"theirs": "", "vllm": "vllm", "ours": "whole"}
        while True not in triton.named:
            for model in ("theirs", "vllm", "ours"):
                await stub.ModelInfer(asked(model))
        assert {index % 3 for index, named in enumerate(triton.named) if named} == {2}


async def test_a_model_is_asked_about_again_after_a_while() -> None:
    now_s, ours, found = 0.0, True, list[str]()

    async def ask(model: str) -> bool:
        found.append(model)
        return ours

    tasks = list[asyncio.Task[None]]()
    models = OurModels(ask, lambda work: tasks.append(asyncio.create_task(work)), lambda: now_s)
    assert not models.have("a")
    await asyncio.gather(*tasks)
    assert models.have("a")
    now_s, ours = 6.0, False
    assert models.have("a"), "as long as nothing else is known"
    await asyncio.gather(*tasks)
    assert not models.have("a")
    assert not models.have("a" * 256)
    assert found == ["a", "a"]


def test_a_port_that_can_make_no_file_lets_calls_run_to_their_end(tmp_path: Path) -> None:
    left = AbandonedRequests(f"{tmp_path}/none/left_")
    left.tell(left.new_call())
    call = left.new_call()
    left.tell(call)
    left.forget(call)
