"""The gRPC port where what computes an answer dies: asked again, or ended with a status."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2

from hf_triton.ports.retries import InFlight
from hf_triton.ports.triton_calls import Asked
from tests.unit.ports.grpc_ports import Triton, grpc_port

AWAY = "the engine m_stream went away before it answered: try again"


def asked(number: int) -> Any:
    return service_pb2.ModelInferRequest(model_name="m", id=str(number))


async def streamed(stub: Any, *requests: Any) -> list[str]:
    """The errors in the answers, "" where there is none."""
    return [one.error_message async for one in stub.ModelStreamInfer(iter(requests))]


async def until_asked(triton: Triton, num: int) -> None:
    async def look() -> None:
        while len(triton.prompts) < num:
            await asyncio.sleep(0.005)

    await asyncio.wait_for(look(), 10)


@asynccontextmanager
async def told_port(folder: Path) -> AsyncIterator[tuple[Triton, Any]]:
    async with grpc_port(folder) as found:
        found[0].supervisor.tell()
        yield found


async def test_a_request_that_failed_for_its_model_was_away_is_sent_again(tmp_path: Path) -> None:
    async with told_port(tmp_path) as (triton, stub):
        triton.errors = [AWAY, AWAY]
        answers = await asyncio.gather(*(stub.ModelInfer(asked(number)) for number in range(5)))
        assert [one.id for one in answers] == ["0", "1", "2", "3", "4"]
        triton.errors = [AWAY]
        assert await streamed(stub, asked(5)) == [""]
        assert len(triton.prompts) == 9


async def test_an_error_of_the_request_itself_is_passed_on(tmp_path: Path) -> None:
    async with told_port(tmp_path) as (triton, stub):
        triton.errors = ["x: got 1, allowed: 2"] * 2
        with pytest.raises(grpc.aio.AioRpcError, match="allowed: 2"):
            await stub.ModelInfer(asked(1))
        assert await streamed(stub, asked(2)) == ["x: got 1, allowed: 2"]
        assert triton.prompts == ["1", "2"]


@pytest.mark.usefixtures("no_collection")
async def test_the_message_of_an_answered_call_is_freed(tmp_path: Path) -> None:
    async with told_port(tmp_path) as (_, stub):
        await stub.ModelInfer(asked(1))
        assert await streamed(stub, asked(2)) == [""]
        found = gc.get_objects()
        assert not [one for one in found if type(one) is InFlight and one.payload]
        assert not [one for one in found if type(one) is Asked]


@pytest.mark.parametrize("dies", ["the model, as the supervisor says", "tritonserver"])
async def test_calls_are_sent_again_when_what_computes_them_dies(dies: str, tmp_path: Path) -> None:
    async with told_port(tmp_path) as (triton, stub):
        triton.num_dead = 3
        calls = [stub.ModelInfer(asked(1)), stub.ModelInfer(asked(2)), streamed(stub, asked(3))]
        waiting = [asyncio.ensure_future(one) for one in calls]
        await until_asked(triton, 3)
        if dies == "tritonserver":
            triton.relay.cut()
        else:
            triton.supervisor.kill()
        first, second, errors = await asyncio.wait_for(asyncio.gather(*waiting), 10)
        assert (first.id, second.id, errors) == ("1", "2", [""])
        assert await streamed(stub, asked(4)) == [""], "the connection goes on"


async def test_a_request_waits_for_a_model_that_comes_back_and_goes_with_its_caller(
    tmp_path: Path,
) -> None:
    async with told_port(tmp_path) as (triton, stub):
        triton.supervisor.tell(is_coming=True)
        waiting, left = (stub.ModelInfer(asked(number)) for number in range(2))
        await asyncio.sleep(0.1)
        assert not triton.prompts
        left.cancel()
        await asyncio.sleep(0.05)
        triton.supervisor.tell()
        assert (await waiting).id == "0"
        assert triton.prompts == ["0"]


async def test_a_stream_that_has_begun_ends_with_a_status_at_once(tmp_path: Path) -> None:
    async with told_port(tmp_path) as (triton, stub):
        request = asked(1)
        request.parameters["waits"].bool_param = True
        call = stub.ModelStreamInfer(iter((request,)))
        assert (await call.read()).error_message == ""
        triton.supervisor.kill()
        with pytest.raises(grpc.aio.AioRpcError, match="died while it answered") as failed:
            await call.read()
        assert failed.value.code() == grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize("num_deaths, size", [(0, 300_000), (1, 1), (2, 300_000)])
async def test_a_stream_goes_on_without_a_seam_where_its_model_keeps_a_journal(
    num_deaths: int, size: int, tmp_path: Path
) -> None:
    async with told_port(tmp_path) as (triton, stub):
        triton.supervisor.say_ours()
        triton.num_tokens, triton.num_deaths, triton.piece = 6, num_deaths, b"x" * size
        answers = [one.infer_response async for one in stub.ModelStreamInfer(iter((asked(1),)))]
        assert [one.id for one in answers] == [str(number) for number in range(6)]
        assert all(one.raw_output_contents == [triton.piece] for one in answers)
        assert len(triton.calls) == num_deaths + 1
        assert not list(tmp_path.glob("left_*.told"))


async def test_of_several_requests_at_once_each_goes_on(tmp_path: Path) -> None:
    async with told_port(tmp_path) as (triton, stub):
        triton.supervisor.say_ours()
        triton.num_tokens, triton.num_deaths = 4, 2
        answers = stub.ModelStreamInfer(iter((asked(1), asked(2))))
        ids = [one.infer_response.id async for one in answers]
        assert sorted(ids) == sorted("0123" * 2)
        assert triton.num_deaths == 0


async def test_of_several_requests_one_after_another_each_goes_on(tmp_path: Path) -> None:
    async with told_port(tmp_path) as (triton, stub):
        triton.supervisor.say_ours()
        triton.num_tokens = 4
        call, request = stub.ModelStreamInfer(), asked(1)
        request.parameters["triton_enable_empty_final_response"].bool_param = True
        for num_deaths in (1, 0, 2):
            triton.num_deaths = num_deaths
            await call.write(request)
            ids = [(await call.read()).infer_response.id for _ in range(4)]
            assert ids == ["0", "1", "2", "3"]
        assert len({name.split("-")[3] for name in triton.calls}) == 3
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF


async def test_a_stream_without_a_request_outlives_tritonserver(tmp_path: Path) -> None:
    async with told_port(tmp_path) as (triton, stub):
        triton.supervisor.say_ours()
        triton.num_tokens = 2
        call, request = stub.ModelStreamInfer(), asked(1)
        request.parameters["triton_enable_empty_final_response"].bool_param = True
        await asyncio.sleep(0.1)  # until its head has come
        for _ in range(3):
            triton.relay.cut()
            await asyncio.sleep(0.1)
            await call.write(request)
            assert [(await call.read()).infer_response.id for _ in range(2)] == ["0", "1"]
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
