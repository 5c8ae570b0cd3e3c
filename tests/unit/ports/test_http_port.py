"""The HTTP port: what goes on to tritonserver and comes back, and in which order."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import gzip
import json
import zlib
from pathlib import Path
from typing import Any

import pytest

from hf_triton.ports.http.proxy import HttpProxy
from hf_triton.ports.retries import RetryCoordinator
from hf_triton.ports.serving import serve_ports
from hf_triton.ports.settings import Access, Caller, ProxySettings
from tests.support.triton import free_ports
from tests.unit.ports.http_ports import (
    GENERATE,
    ONE_AT_ONCE,
    PATIENCE_S,
    FakeTriton,
    Message,
    answer,
    answering,
    echo,
    never,
    open_port,
    read_message,
)

BEGUN = f"POST {GENERATE} HTTP/1.1\r\nHost: a\r\n"


async def test_a_body_goes_on_as_json_with_a_length() -> None:
    async with open_port() as port:
        client = await port.client()
        body = json.dumps({"text_input": "hello"}).encode()
        kind = "Content-Type: application/x-www-form-urlencoded\r\n"
        client.post(GENERATE, body, kind)
        assert (await client.answer()).json == [
            f"POST {GENERATE} HTTP/1.1",
            '{"text_input":"hello"}',
        ]
        chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\nTrailer: x\r\n\r\n"
        head = f"{BEGUN}{kind}Transfer-Encoding: chunked\r\n\r\n".encode()
        client.send(head + chunks)
        assert (await client.answer()).json[1] == '{"text_input":"hello"}'
        for request in port.triton.asked:
            assert request.headers["content-type"] == "application/json"
            assert request.headers["content-length"] == str(len(request.body))
            assert not {"transfer-encoding", "trailer"} & set(request.headers)
        assert port.triton.num_connections == 1


async def test_headers_of_one_connection_stay_on_it() -> None:
    async with open_port() as port:
        assert (
            await port.get(
                "/v2", "X-My: 1\r\nConnection: keep-alive\r\nTE: trailers\r\nExpect: \r\n"
            )
        ).status == 417
        assert (
            await port.get("/v2", "X-My: 1\r\nConnection: keep-alive\r\nTE: trailers\r\n")
        ).status == 200
        assert port.triton.asked[0].headers == {"host": "a", "x-my": "1"}


async def test_answers_come_in_the_order_of_their_requests() -> None:
    async def slow_first(request: Message, writer: asyncio.StreamWriter) -> None:
        if "/slow" in request.first:
            await asyncio.sleep(0.05)
        await echo(request, writer)

    async with open_port(script=slow_first) as port:
        client = await port.client()
        client.get("/slow")
        client.send(b"DELETE /later HTTP/1.1\r\nHost: a\r\n\r\n")
        client.get("/lost")
        assert (await client.answer()).json[0] == "GET /slow HTTP/1.1"
        assert (await client.answer()).status == 405
        assert await client.is_closed()
        client = await port.client()
        for number in range(60):
            client.get(f"/{number}")
        for number in range(60):
            assert (await client.answer()).json[0] == f"GET /{number} HTTP/1.1"


async def test_the_metrics_of_callers_stand_behind_tritons() -> None:
    whole = answer(b"a 1\n" * 5000)
    async with open_port(script=answering(whole[:40], whole[40:9000], whole[9000:])) as port:
        port.proxy.metrics = lambda: "b 2\n"
        for _ in range(2):
            got = await port.get("/metrics")
            assert (got.status, got.body) == (200, b"a 1\n" * 5000 + b"b 2\n")
            assert got.headers["content-type"].startswith("text/plain")


async def test_events_pass_one_by_one() -> None:
    go = asyncio.Event()

    async def script(_request: Message, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for number in range(3):
            writer.write(b"9\r\ndata: %d\n\n\r\n" % number)
            await go.wait()
            go.clear()
        writer.write(b"0\r\n\r\n")

    async with open_port(script=script) as port:
        client = await port.client()
        client.post(GENERATE + "_stream", b"{}")
        await client.reader.readuntil(b"\r\n\r\n")
        for number in range(3):
            assert await client.reader.readuntil(b"\n\n\r\n") == b"9\r\ndata: %d\n\n\r\n" % number
            go.set()
        assert await client.reader.readexactly(5) == b"0\r\n\r\n"
        client.get("/again")
        assert b"200" in await client.reader.readuntil(b"\r\n\r\n")


async def test_one_that_asks_for_another_protocol_gets_this_one() -> None:
    async with open_port() as port:
        client = await port.client()
        upgrade = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n"
        for number in range(3):
            client.post(GENERATE, b'{"a":%d}' % number, upgrade)
        client.get("/v2", upgrade)
        head = f"{BEGUN}{upgrade}Transfer-Encoding: chunked\r\n\r\n".encode()
        client.send(head + b"1\r\n{\r\n")
        for number in range(3):
            assert (await client.answer()).json[1] == f'{{"a":{number}}}'
        assert (await client.answer()).json[0] == "GET /v2 HTTP/1.1"
        client.send(b"1\r\n}\r\n0\r\n\r\n")
        assert (await client.answer()).json[1] == "{}"
        assert "upgrade" not in port.triton.asked[0].headers


@pytest.mark.threat("doubled-headers")
@pytest.mark.parametrize(
    "target, host, path",
    [
        ("http://b:80/v2?a=http://c/", "b:80", "/v2?a=http://c/"),
        ("HTTPS://[::1]:8000", "[::1]:8000", "/"),
        ("http://b?a", "b", "/?a"),
        ("/v2", "a", "/v2"),
    ],
)
async def test_the_host_of_a_target_counts(target: str, host: str, path: str) -> None:
    async with open_port() as port:
        assert (await port.get(target)).status == 200
        (asked,) = port.triton.asked
        assert (asked.first, asked.headers["host"]) == (f"GET {path} HTTP/1.1", host)


@pytest.mark.threat("doubled-headers")
async def test_the_path_within_a_target_is_the_one_that_is_judged() -> None:
    async with open_port(admin_key="the-admin-key") as port:
        assert (await port.post("http://b/v2/repository/models/m/load", b"{}")).status == 403
        assert port.triton.asked == []


@pytest.mark.parametrize(
    "coding, packed", [("gzip", gzip.compress), ("Deflate", zlib.compress)], ids=["gzip", "deflate"]
)
async def test_a_compressed_body_goes_on_as_it_was_checked(coding: str, packed: Any) -> None:
    """As tritonclient sends it: the length of its JSON is that before it was compressed."""
    data = b"\x08\0\0\0" + b"aaaaaaaa"
    binary = {"parameters": {"binary_data_size": len(data)}}
    tensor = {"name": "x", "datatype": "BYTES", "shape": [1], **binary}
    head = json.dumps({"inputs": [tensor]}).encode()
    length = f"Inference-Header-Content-Length: {len(head)}\r\n"
    async with open_port() as port:
        client = await port.client()
        sent = packed(head + data)
        client.post("/v2/models/m/infer", sent, f"Content-Encoding: {coding}\r\n{length}")
        client.post("/v2/models/m/infer", sent[:-9], "Content-Encoding: gzip\r\n")
        client.post("/v2/models/m/infer", b"{}", "Content-Encoding: gzip\r\n")
        assert [(await client.answer()).status for _ in range(3)] == [200, 400, 400]
        (asked,) = port.triton.asked
        assert "content-encoding" not in asked.headers
        told = int(asked.headers["inference-header-content-length"])
        assert json.loads(asked.body[:told])["inputs"][0]["name"] == "x"
        assert asked.body[told:] == data


async def test_the_last_request_of_a_connection_is_its_last() -> None:
    async with open_port() as port:
        client = await port.client()
        client.get("/1", "Connection: close\r\n")
        client.get("/2")
        assert (await client.answer()).json[0] == "GET /1 HTTP/1.1"
        assert await client.is_closed()
        assert len(port.triton.asked) == 1


@pytest.mark.parametrize("cut", range(1, 40, 3))
async def test_an_answer_in_pieces_is_one_answer(cut: int) -> None:
    whole = answer(b'"abc"')
    access = Access(cors=("*",))
    async with open_port(access, script=answering(whole[:cut], whole[cut:])) as port:
        client = await port.client()
        for _ in range(2):
            client.get("/v2", "Origin: http://page\r\n")
            got = await client.answer()
            assert got.json == "abc"
            assert got.headers["access-control-allow-origin"] == "*"
        assert port.triton.num_connections == 1


async def test_stopping_ends_what_is_idle_and_lets_the_rest_end() -> None:
    go = asyncio.Event()

    async def script(request: Message, writer: asyncio.StreamWriter) -> None:
        await go.wait()
        await echo(request, writer)

    async with open_port(script=script) as port:
        idle, busy = await port.client(), await port.client()
        busy.get("/busy")
        busy.get("/next")
        await port.until(lambda: len(port.triton.asked) == 1)
        port.proxy.begin_stop()
        assert await idle.is_closed()
        go.set()
        assert (await busy.answer()).json[0] == "GET /busy HTTP/1.1"
        assert await busy.is_closed()
        await port.until(lambda: len(port.proxy.connections) == 0)
        await port.until(lambda: port.triton.num_open == 0)


async def test_metrics_need_no_key(tmp_path: Path) -> None:
    listen = dataclasses.replace(free_ports(), sockets=str(tmp_path))
    stop, ready = asyncio.Event(), asyncio.Event()
    access = Access(callers=(Caller("alice", "a-key-of-alice-123"),))
    triton = FakeTriton()
    paths = (listen.http_socket, listen.metrics_socket)
    behind = [await asyncio.start_unix_server(triton.serve, path) for path in paths]
    settings = ProxySettings(listen, access=access)
    serving = asyncio.ensure_future(serve_ports(settings, stop, ready.set, RetryCoordinator()))
    await asyncio.wait_for(ready.wait(), PATIENCE_S)
    found = []
    for port in (listen.http_port, listen.metrics_port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n")
        found.append((await asyncio.wait_for(read_message(reader), PATIENCE_S)).status)
        writer.close()
    stop.set()
    await asyncio.wait_for(serving, PATIENCE_S)
    for server in behind:
        server.close()
    assert found == [401, 200]


async def test_a_bug_of_ours_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_proxy: HttpProxy, _request: object) -> bytes:
        raise KeyError("secret")

    async with open_port(ONE_AT_ONCE) as port:
        client = await port.client()
        with monkeypatch.context() as patch:
            patch.setattr(HttpProxy, "checked", fail)
            client.post(GENERATE, b"{}")
            got = await client.answer()
        assert got.status == 500
        assert got.error == "internal error: KeyError"
        client.post(GENERATE, b"{}")
        assert (await client.answer()).status == 200


async def test_a_large_body_that_cant_be_checked_tells_nothing_of_tritonserver(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> bytes:
        raise OSError(errno.EMFILE, "too many")

    monkeypatch.setattr("hf_triton.ports.http.proxy.checked_generate", fail)
    async with open_port() as port:
        got = await port.post(GENERATE, b" " * 300_000)
        assert (got.status, "the server lacks a resource" in got.error) == (503, True)


async def test_requests_are_not_taken_without_end() -> None:
    async with open_port(script=never) as port:
        client = await port.client()
        for number in range(100):
            client.get(f"/{number}")
        await port.until(lambda: len(port.triton.asked) == 1)
        client.writer.close()
        await port.until(lambda: port.triton.num_open == 0)
        assert len(port.triton.asked) == 1


async def test_http_1_0_gets_its_answer_and_the_end() -> None:
    script = answering(b"HTTP/1.0 200 OK\r\n\r\n", b"half", b"half", then=lambda w: w.close())
    async with open_port(script=script) as port:
        client = await port.client()
        client.send(b"GET /v2 HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        assert await client.rest() == b"HTTP/1.0 200 OK\r\n\r\nhalfhalf"
        assert port.triton.asked[0].first == "GET /v2 HTTP/1.0"


async def test_a_bug_in_reading_is_an_answer_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_proxy: HttpProxy, _request: object, _address: str) -> None:
        raise KeyError("secret")

    monkeypatch.setattr(HttpProxy, "judge", fail)
    async with open_port() as port:
        client = await port.client()
        client.post(GENERATE, b"{}")
        assert (await client.answer()).status == 500
        assert await client.is_closed()
