"""The HTTP port before a tritonserver that is busy or dies."""

from __future__ import annotations

import asyncio
import json
import socket

import pytest

from tests.unit.ports.http_ports import (
    CLASSIFIED,
    GENERATE,
    INFER,
    ONE_AT_ONCE,
    Message,
    answer,
    answering,
    echo,
    open_port,
)


async def test_a_tritonserver_that_dies_is_told_of() -> None:
    async with open_port(ONE_AT_ONCE, script=answering(then=lambda w: w.close())) as port:
        client = await port.client()
        client.get("/v2")
        got = await client.answer()
        assert (got.status, got.headers["connection"]) == (503, "close")
        assert got.headers["retry-after"] == "1"
        assert "ended" in got.error
        assert await client.is_closed()
        port.triton.script = answering(answer(b"12345")[:-1], then=lambda w: w.close())
        client = await port.client()
        client.get("/v2")
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await client.answer()  # cut off: no end that looks like one
        port.triton.script = echo
        assert (await port.get("/v2")).status == 200


async def test_an_answer_after_which_tritonserver_closes_is_whole() -> None:
    script = answering(answer(headers="Connection: close\r\n"), then=lambda w: w.close())
    async with open_port(script=script) as port:
        for _ in range(2):
            client = await port.client()
            client.get("/v2")
            assert (await client.answer()).json == {}
            assert await client.is_closed()


async def test_what_nobody_asked_for_goes_to_nobody() -> None:
    writers: list[asyncio.StreamWriter] = []

    async def script(request: Message, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        await echo(request, writer)

    async with open_port(script=script) as port:
        client = await port.client()
        client.get("/1")
        await client.answer()
        writers[0].write(answer(b'"stray"'))
        await port.until(lambda: port.triton.num_open == 0)
        client.get("/2")
        assert (await client.answer()).json[0] == "GET /2 HTTP/1.1"


async def test_where_tritonserver_does_not_listen_yet_is_said() -> None:
    async with open_port(ONE_AT_ONCE) as port:
        port.proxy.pool.path += ".not-there"
        client = await port.client()
        for _ in range(2):
            client.post(GENERATE, b"{}")
            got = await client.answer()
            assert (got.status, got.headers["retry-after"]) == (503, "1")
            assert got.headers["connection"] == "keep-alive"
            assert "being started" in got.error


async def test_more_at_once_than_tritonserver_accepts_at_once_are_served() -> None:
    async with open_port() as port:
        path = port.proxy.pool.path + ".slow"
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(path)
        listening.listen(1)
        port.proxy.pool.path = path
        clients = [await port.client() for _ in range(5)]
        for client in clients:
            client.get("/v2")
        await asyncio.sleep(0.05)
        server = await asyncio.start_unix_server(port.triton.serve, sock=listening, backlog=1)
        assert [(await client.answer()).status for client in clients] == [200] * 5
        server.close()


@pytest.mark.parametrize(
    "output, told",
    [
        ('name: "y" data_type: TYPE_FP32', ""),
        ('name: "y" data_type: TYPE_STRING', "got output 'y' of type BYTES; allowed: numbers"),
        ('name: "z" data_type: TYPE_FP32', "got output 'y' that the model does not have"),
    ],
)
async def test_classes_are_of_numbers(output: str, told: str) -> None:
    async with open_port(ONE_AT_ONCE) as port:
        (port.folder / "m").mkdir()
        (port.folder / "m" / "config.pbtxt").write_text(f"output [ {{ {output} }} ]")
        for path in (INFER, "/v2/models/m/versions/1/infer"):
            answered = await port.post(path, json.dumps(CLASSIFIED).encode())
            assert answered.status == (400 if told else 200)
            assert told in (answered.error if told else "")
        unknown = await port.post("/v2/models/%00/infer", json.dumps(CLASSIFIED).encode())
        assert unknown.status == 400
