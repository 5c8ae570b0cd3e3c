"""The proxies handle calls that need the admin key, and an empty last response."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest
from tritonclient.grpc import service_pb2

from hf_triton.ports.refusal import GRPC_ADMIN_HEADER, HTTP_ADMIN_HEADER
from tests.unit.ports.grpc_ports import grpc_port
from tests.unit.ports.http_ports import open_port

KEY = "the-admin-key-of-this-test"
OPTION = "--open-admin-apis"


def posted(path: str, header: str = "", body: str = "{}") -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: a\r\n{header}Content-Length: {len(body)}\r\n\r\n"
    return (head + body).encode()


@pytest.mark.parametrize(
    "body, told",
    [
        *(
            ('{"ready": "x"}', "ready: "),
            ('{"ready": 1}', "ready: "),
            ('{"ready": null}', "ready: "),
        ),
        *(("[]", "the body: "), ("5", "the body: "), ("{", "the body: ")),
        *(('{"ready": true}', ""), ('{"ready" : false }', "")),
    ],
)
async def test_what_the_index_does_not_understand_is_a_mistake_of_its_caller(
    body: str, told: str
) -> None:
    async with open_port() as port:
        got = await port.ask(posted("/v2/repository/index", body=body))
        assert got.status == (400 if told else 200)
        assert told in (got.json["error"] if told else "")
        assert len(port.triton.asked) == (not told)


@pytest.mark.threat("repository-api", "register-memory", "trace-and-log-settings")
async def test_the_key_opens_what_changes_the_server_and_stays_here() -> None:
    async with open_port(admin_key=KEY) as port:
        right = f"{HTTP_ADMIN_HEADER}: {KEY}\r\n"
        for path in ("/v2/repository/index", "/v2/logging"):
            assert (await port.ask(posted(path, right))).status == 200
        assert not any(HTTP_ADMIN_HEADER in one.headers for one in port.triton.asked)


@pytest.mark.threat("read-only-apis", "repository-api", "register-memory", "trace-and-log-settings")
@pytest.mark.parametrize(
    "header", ["", *(f"{HTTP_ADMIN_HEADER}: {key}\r\n" for key in (KEY[1:], ""))]
)
@pytest.mark.parametrize(
    "path",
    [
        *("/v2/repository/models/x/load", "/v2/repository/index/", "/v2/systemsharedmemory/status"),
        *("/v2/models/x/trace/setting", "/v2/models/x/versions/1/trace/setting", "/v2/logging"),
    ],
)
async def test_calls_without_it_are_told_what_opens_them(path: str, header: str) -> None:
    async with open_port(admin_key=KEY) as port:
        refused = await port.ask(posted(path, header))
        assert refused.status == 403
        assert OPTION in refused.json["error"]
        assert not port.triton.asked


@pytest.mark.threat("read-only-apis")
async def test_grpc_calls_are_told_apart_in_the_same_way(tmp_path: Path) -> None:
    async with grpc_port(tmp_path, KEY) as (triton, stub):
        await stub.RepositoryIndex(service_pb2.RepositoryIndexRequest())
        for key in ("wrong", KEY):
            sent = [(GRPC_ADMIN_HEADER, key)]
            await stub.RepositoryIndex(service_pb2.RepositoryIndexRequest(), metadata=sent)
        assert triton.keys == [None] * 3
        asked = service_pb2.SystemSharedMemoryStatusRequest()
        for metadata in ([], [(GRPC_ADMIN_HEADER, "wrong")]):
            with pytest.raises(grpc.aio.AioRpcError, match=OPTION) as refused:
                await stub.SystemSharedMemoryStatus(asked, metadata=metadata)
            assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
        with pytest.raises(grpc.aio.AioRpcError) as passed_on:
            await stub.SystemSharedMemoryStatus(asked, metadata=[(GRPC_ADMIN_HEADER, KEY)])
        assert passed_on.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_a_model_is_told_who_wants_an_empty_last_response(tmp_path: Path) -> None:
    plain, asking = (service_pb2.ModelInferRequest(model_name="x") for _ in range(2))
    asking.parameters["triton_enable_empty_final_response"].bool_param = True
    async with grpc_port(tmp_path, KEY) as (triton, stub):
        call = stub.ModelStreamInfer(iter((plain, asking, plain)))
        assert len([one async for one in call]) == 3
    assert sorted(triton.told) == [False, False, True], "several are asked at once"
