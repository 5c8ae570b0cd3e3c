"""A model whose loads were killed, at every door: its callers are told why it is not there, and how
it comes back.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2

from hf_triton.ports.retries import Model, line_of
from hf_triton.tritonserver.model_state import State
from tests.unit.ports.grpc_ports import grpc_port
from tests.unit.ports.http_ports import GENERATE, INFER, open_port

BODY = b'{"text_input": "x", "inputs": []}'
WHY = "its Python process died while loading (killed by SIGKILL)"
BY_APPLY = f"{WHY}; given up after 6 failed loads in a row; `hf-triton apply` loads it again"
BY_ITSELF = f"failed to load: {WHY}; it is loaded again in 8 s (5 deaths in a row)"
GIVEN_UP = Model(True, failure=BY_APPLY, retry_s=60, state=State.GIVEN_UP)
TRIED_AGAIN = Model(True, waits_for=BY_ITSELF, wait_s=0.05, state=State.LOADING)
ON_DEMAND = Model(True, residence="asleep", failure=WHY, retry_s=7, state=State.FAILED)
TOLD = {
    "given up": (GIVEN_UP, f"model 'm' can't be loaded: {BY_APPLY}", "60"),
    "tried again": (TRIED_AGAIN, f"model 'm' did not come back in time: {BY_ITSELF}", "5"),
    "on demand": (ON_DEMAND, f"model 'm' can't be loaded: {WHY}", "7"),
}


@pytest.mark.parametrize("how", TOLD)
@pytest.mark.parametrize("path", [INFER, GENERATE, f"{GENERATE}_stream"])
async def test_over_http_it_is_a_503(path: str, how: str) -> None:
    model, text, retry_s = TOLD[how]
    async with open_port() as port:
        port.proxy.retries.follow(line_of({"m": model}))
        answer = await port.post(path, BODY)
        assert answer.status == 503
        assert answer.error.removesuffix("; try again") == text
        assert answer.headers["retry-after"] == retry_s
        assert not port.triton.asked


@pytest.mark.parametrize("how", TOLD)
async def test_over_grpc_it_is_unavailable(how: str, tmp_path: Path) -> None:
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
