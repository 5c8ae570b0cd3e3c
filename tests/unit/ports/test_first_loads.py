"""Requests to a model that is loaded for the first time, which Triton calls unknown."""

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
async def test_over_http_it_is_a_503(path: str) -> None:
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


async def test_over_grpc_it_is_unavailable(tmp_path: Path) -> None:
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
