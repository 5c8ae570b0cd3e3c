"""Requests to a model that is not there, at every door: it loads, or its loads were killed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2

from generator.repository.writing import locked_model
from hf_triton.ports.retries import Model, RetryCoordinator, line_of
from hf_triton.tritonserver.model_state import State
from tests.unit.ports.grpc_ports import grpc_port
from tests.unit.ports.http_ports import GENERATE, INFER, answer, answering, open_port

BODY = b'{"text_input": "x", "inputs": []}'
OF_A_VERSION = INFER.replace("/m/", "/m/versions/1/")
UNKNOWN = "Request for unknown model: 'm' version 1 is not at ready state"
BY_APPLY = "model 'm' is being loaded or removed by an apply; try again"
BY_SERVE = "model 'm' is being loaded; try again"


def tell(port: RetryCoordinator, state: State) -> None:
    port.follow(line_of({"m": Model(state=state, waits_for="is being loaded")}))


@pytest.mark.parametrize("path", [INFER, OF_A_VERSION, GENERATE, f"{GENERATE}_stream"])
async def test_over_http_a_first_load_is_a_503(path: str) -> None:
    unknown = answer(json.dumps({"error": UNKNOWN}).encode(), status="404 Not Found")
    async with open_port(script=answering(unknown)) as port:

        async def found() -> tuple[int, str | None, str]:
            got = await port.post(path, BODY)
            return got.status, got.headers.get("retry-after"), got.error

        assert await found() == (404, None, UNKNOWN)
        with locked_model(port.folder / "m"):
            assert await found() == (503, "1", BY_APPLY)
        tell(port.proxy.retries, State.LOADING)
        assert await found() == (503, "1", BY_SERVE)
        tell(port.proxy.retries, State.ASLEEP)
        assert await found() == (404, None, UNKNOWN)


async def test_over_grpc_a_first_load_is_unavailable(tmp_path: Path) -> None:
    request = service_pb2.ModelInferRequest(model_name="m")
    async with grpc_port(tmp_path) as (triton, stub):

        async def stream() -> list[Any]:
            return [one.error_message async for one in stub.ModelStreamInfer(iter((request,)))]

        async def refusals() -> list[str]:
            triton.errors, texts = [UNKNOWN] * 2, []
            for asked in (stub.ModelInfer(request), stream()):
                with pytest.raises(grpc.aio.AioRpcError) as found:
                    await asked
                assert found.value.code() == grpc.StatusCode.UNAVAILABLE
                texts.append(found.value.details() or "")
            return texts

        triton.errors = [UNKNOWN]
        assert await stream() == [UNKNOWN]
        with locked_model(tmp_path / "m"):
            assert await refusals() == [BY_APPLY] * 2
        tell(triton.supervisor.port, State.LOADING)
        assert await refusals() == [BY_SERVE] * 2


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/m", "\0", "m"])
def test_a_name_that_is_no_folder_of_the_repository_locks_nothing(
    name: str, tmp_path: Path
) -> None:
    with locked_model(tmp_path / "repository"):
        assert not RetryCoordinator(repository=tmp_path / "repository").why_loading(name)


WHY = "its Python process died while loading (killed by SIGKILL)"
FOR_GOOD = f"{WHY}; given up after 6 failed loads in a row; `hf-triton apply` loads it again"
BY_ITSELF = f"failed to load: {WHY}; it is loaded again in 8 s (5 deaths in a row)"
GIVEN_UP = Model(True, failure=FOR_GOOD, retry_s=60, state=State.GIVEN_UP)
TRIED_AGAIN = Model(True, waits_for=BY_ITSELF, wait_s=0.05, state=State.LOADING)
ON_DEMAND = Model(True, residence="asleep", failure=WHY, retry_s=7, state=State.FAILED)
TOLD = {
    "given up": (GIVEN_UP, f"model 'm' can't be loaded: {FOR_GOOD}", "60"),
    "tried again": (TRIED_AGAIN, f"model 'm' did not come back in time: {BY_ITSELF}", "5"),
    "on demand": (ON_DEMAND, f"model 'm' can't be loaded: {WHY}", "7"),
}


@pytest.mark.parametrize("how", TOLD)
@pytest.mark.parametrize("path", [INFER, GENERATE, f"{GENERATE}_stream"])
async def test_over_http_a_model_whose_loads_were_killed_is_a_503(path: str, how: str) -> None:
    model, text, retry_s = TOLD[how]
    async with open_port() as port:
        port.proxy.retries.follow(line_of({"m": model}))
        answer = await port.post(path, BODY)
        assert answer.status == 503
        assert answer.error.removesuffix("; try again") == text
        assert answer.headers["retry-after"] == retry_s
        assert not port.triton.asked


@pytest.mark.parametrize("how", TOLD)
async def test_over_grpc_a_model_whose_loads_were_killed_is_unavailable(
    how: str, tmp_path: Path
) -> None:
    model, text, _ = TOLD[how]
    request = service_pb2.ModelInferRequest(model_name="m")
    async with grpc_port(tmp_path) as (triton, stub):
        triton.supervisor.port.follow(line_of({"m": model}))

        async def stream() -> list[Any]:
            return [one async for one in stub.ModelStreamInfer(iter((request,)))]

        for answer in (stub.ModelInfer(request), stream()):
            with pytest.raises(grpc.aio.AioRpcError) as found:
                await answer
            assert found.value.code() == grpc.StatusCode.UNAVAILABLE
            assert (found.value.details() or "").removesuffix("; try again") == text
        assert not triton.prompts
