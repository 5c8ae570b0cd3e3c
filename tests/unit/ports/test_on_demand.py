"""The ports in front of models that are loaded on demand: what waits, and what the supervisor is
told of it.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2

from hf_triton.ports import retries
from hf_triton.ports.refusal import RefusedError
from hf_triton.ports.retries import Demand, InFlight, Model, RetryCoordinator, demand_of, line_of
from tests.unit.ports.grpc_ports import grpc_port
from tests.unit.ports.http_ports import GENERATE, open_port

BODY = b'{"text_input": "x"}'
ASLEEP = Model(is_coming=True, residence="asleep", wait_s=60.0)
LOADED = Model(residence="loaded", wait_s=60.0)
FAILED = Model(is_coming=True, residence="asleep", wait_s=60.0, failure="no such file", retry_s=7)


def tell(port: RetryCoordinator, model: Model) -> None:
    port.follow(line_of({"m": model}))


class Port:
    """A port's requests; ``said`` is what the supervisor was told last."""

    def __init__(self, model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(retries, "TELL_AFTER_S", 0.0)
        self.said: Demand = {}
        self.retries = RetryCoordinator(say=self._take)
        tell(self.retries, model)

    def _take(self, line: bytes) -> None:
        self.said = demand_of(line)

    def held(self, model: str = "m") -> InFlight:
        return InFlight(self.retries, model, lambda: None)

    async def says(self, *numbers: int) -> bool:
        for _ in range(200):
            if self.said.get("m", (0, 0, 0)) == numbers:
                return True
            await asyncio.sleep(0.01)
        return False


async def test_the_supervisor_is_told_what_waits_what_runs_and_what_was_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    port = Port(ASLEEP, monkeypatch)
    one, two = port.held(), port.held()
    waiting = [asyncio.ensure_future(held.wait_until_sendable()) for held in (one, two)]
    assert await port.says(2, 0, 0)
    waiting[1].cancel()
    two.end()
    assert await port.says(1, 0, 0), "one has left"
    tell(port.retries, LOADED)
    await waiting[0]
    assert await port.says(0, 1, 1)
    one.end()
    assert await port.says(0, 0, 1)


@pytest.mark.parametrize("line", [b"", b"ready", b"{", b'{"m": 3}', b'{"m": [1, 2]}'])
def test_a_line_that_tells_nothing_asks_for_nothing(line: bytes) -> None:
    assert demand_of(line) == {}


async def test_who_waits_for_what_cant_be_loaded_is_refused_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    port = Port(ASLEEP, monkeypatch)
    held = port.held()
    waiting = asyncio.ensure_future(held.wait_until_sendable())
    await asyncio.sleep(0)
    tell(port.retries, FAILED)
    for late in (waiting, port.held().wait_until_sendable()):
        with pytest.raises(RefusedError, match="model 'm' can't be loaded: no such file") as found:
            await asyncio.wait_for(late, 5)
        assert (found.value.status, found.value.headers) == (503, {"Retry-After": "7"})


async def test_a_request_waits_so_long_for_a_load_and_is_told_for_what(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    why = "it waits for memory that 'a' still hold"
    away = Model(is_coming=True, residence="asleep", waits_for=why, wait_s=0.05)
    port = Port(away, monkeypatch)
    with pytest.raises(RefusedError, match=f"'m' was not loaded in time: {why}") as found:
        await port.held().wait_until_sendable()
    assert found.value.status == 503
    assert "Retry-After" in found.value.headers


async def test_over_http_what_a_loaded_model_alone_answers_waits_and_its_readiness_does_not() -> (
    None
):
    async with open_port() as port:
        tell(port.proxy.retries, ASLEEP)
        client = await port.client()
        client.get("/v2/models/m/ready")
        assert (await client.answer()).status == 200
        asked = {"/v2/models/m", "/v2/models/m/versions/1", "/v2/models/m/config"}
        clients = [await port.client() for _ in asked]
        for one, path in zip(clients, asked, strict=True):
            one.get(path)
        client.post(GENERATE, BODY)
        await asyncio.sleep(0.05)
        assert not port.triton.asked
        tell(port.proxy.retries, LOADED)
        for one in (client, *clients):
            assert (await one.answer()).status == 200
        assert len(port.triton.asked) == 4


async def test_over_grpc_it_is_the_same(tmp_path: Path) -> None:
    async with grpc_port(tmp_path) as (triton, stub):
        port: RetryCoordinator = triton.supervisor.port
        tell(port, ASLEEP)
        ready = service_pb2.ModelReadyRequest(name="m")
        assert (await stub.ModelReady(ready, timeout=5)).ready

        async def infer() -> Any:
            return await stub.ModelInfer(service_pb2.ModelInferRequest(model_name="m", id="1"))

        waiting = asyncio.ensure_future(infer())
        metadata = asyncio.ensure_future(_unimplemented(stub))
        await asyncio.sleep(0.1)
        assert not triton.prompts
        assert not metadata.done()
        tell(port, LOADED)
        assert (await asyncio.wait_for(waiting, 10)).id == "1"
        assert await asyncio.wait_for(metadata, 10)
        tell(port, FAILED)
        with pytest.raises(grpc.aio.AioRpcError, match="can't be loaded: no such file") as found:
            await infer()
        assert found.value.code() == grpc.StatusCode.UNAVAILABLE


async def _unimplemented(stub: Any) -> bool:
    """True if the fake has been asked for its metadata, which it does not have."""
    try:
        await stub.ModelMetadata(service_pb2.ModelMetadataRequest(name="m"))
    except grpc.aio.AioRpcError as error:
        return bool(error.code() == grpc.StatusCode.UNIMPLEMENTED)
    return False
