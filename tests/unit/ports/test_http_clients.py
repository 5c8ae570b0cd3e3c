"""Clients of the HTTP port that go, do not read, or take much room: what is left for the others."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from pathlib import Path

import pytest

from hf_triton.ports.http import upstream
from hf_triton.ports.settings import MIB
from tests.unit.ports.http_ports import (
    GENERATE,
    INFER,
    ONE_AT_ONCE,
    Client,
    FakeTriton,
    Message,
    Port,
    answer,
    answering,
    echo,
    never,
    open_port,
)


@pytest.mark.parametrize("has_begun", [False, True])
async def test_a_client_that_goes_ends_its_request(has_begun: bool) -> None:
    begun = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with open_port(ONE_AT_ONCE, script=answering(begun) if has_begun else never) as port:
        client = await port.client()
        client.post(GENERATE, b"{}")
        await port.until(lambda: len(port.triton.asked) == 1)
        client.writer.transport.abort()
        await port.until(lambda: port.triton.num_open == 0)
        port.triton.script = echo
        assert (await port.get("/v2")).status == 200


async def test_a_client_that_goes_while_a_check_is_under_way_leaves_nothing() -> None:
    large = b'{"text_input": "' + b"x" * (1 << 19) + b'"}'  # checked by a thread
    async with open_port(ONE_AT_ONCE) as port:
        for _ in range(3):
            client = await port.client()
            client.post(GENERATE, large)
            client.writer.close()
            await port.until(lambda: len(port.proxy.connections) == 0)
            assert (await port.get("/v2")).status == 200
            for one in port.clients:
                one.writer.close()
            await port.until(lambda: len(port.proxy.connections) == 0)


async def test_clients_may_go_at_any_byte() -> None:
    whole = (
        f"POST {GENERATE} HTTP/1.1\r\nHost: a\r\nContent-Length: 30\r\n\r\n".encode()
        + b"{}"
        + b" " * 28
    )
    async with open_port(ONE_AT_ONCE) as port:
        for cut in range(1, len(whole) + 1):
            client = await port.client()
            client.send(whole[:cut])
            await asyncio.sleep(0)
            client.writer.close()
        await port.until(lambda: len(port.proxy.connections) == 0)
        assert (await port.ask(whole)).status == 200


@pytest.mark.threat("unread-answers")
async def test_a_client_that_does_not_read_holds_up_nobody() -> None:
    large = answer(b"x" * 8 * MIB)
    async with open_port(script=answering(large)) as port:
        client = await port.client()
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        client.get("/large")
        client.get("/next")
        await port.until(lambda: len(port.triton.asked) == 1)
        port.triton.script = echo
        assert (await port.get("/v2")).status == 200
        assert [asked.first for asked in port.triton.asked][1:] == ["GET /v2 HTTP/1.1"]
        client.writer.transport.resume_reading()  # type: ignore[attr-defined]
        assert len((await client.answer()).body) == 8 * MIB
        assert (await client.answer()).json[0] == "GET /next HTTP/1.1"


async def send_part(port: Port, num_bytes: int) -> Client:
    """A client that has sent so much of a body that is twice as long."""
    client = await port.client()
    head = f"POST {GENERATE} HTTP/1.1\r\nHost: a\r\nContent-Length: {2 * num_bytes}\r\n\r\n"
    before = port.proxy.bodies.num_bytes
    client.send(head.encode() + b" " * num_bytes)
    await port.until(lambda: port.proxy.bodies.num_bytes == before + num_bytes)
    return client


@pytest.mark.threat("http-bodies")
async def test_bodies_that_wait_have_a_room_of_bounded_size() -> None:
    async with open_port() as port:
        port.proxy.bodies.all_bytes = MIB
        waiting = await send_part(port, MIB - 1000)
        client = await port.client()
        client.post(GENERATE, b" " * 100_000)
        got = await client.answer()
        assert (got.status, got.headers["retry-after"]) == (503, "1")
        assert await client.is_closed()
        small = b'{"text_input": "%s"}' % (b"x" * 2000)
        assert (await port.post(GENERATE, small)).status == 200
        waiting.writer.close()
        await port.until(lambda: port.proxy.bodies.num_bytes == 0)


@pytest.mark.threat("http-bodies")
async def test_a_body_counts_until_tritonserver_has_read_it() -> None:
    reading = asyncio.Event()

    class SlowTriton(FakeTriton):
        async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reading.wait()
            await super().serve(reader, writer)

    async with open_port() as port:
        path = port.proxy.pool.path + ".slow"
        triton = SlowTriton()
        server = await asyncio.start_unix_server(triton.serve, path)
        port.proxy.pool.path = path
        clients = [await port.client() for _ in range(2)]
        for client in clients:
            client.post(GENERATE, b'{"text_input": "%s"}' % (b"x" * 4 * MIB))
        await port.until(lambda: port.proxy.bodies.num_bytes > 8 * MIB)
        clients[0].writer.transport.abort()
        await port.until(lambda: port.proxy.bodies.num_bytes < 5 * MIB)
        assert port.proxy.bodies.num_bytes > 4 * MIB
        reading.set()
        assert (await clients[1].answer()).status == 200
        assert port.proxy.bodies.num_bytes == 0
        server.close()


@pytest.mark.threat("unread-answers")
async def test_a_kept_connection_is_read_again_after_one_who_did_not_read() -> None:
    async with open_port(script=answering(answer(b"x" * 200_000))) as port:
        small = socket.socket()
        small.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        await asyncio.get_running_loop().run_in_executor(
            None, small.connect, ("127.0.0.1", port.number)
        )
        for _ in range(40):
            small.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        await asyncio.sleep(0.3)
        for _ in range(3):
            assert (await port.ask(b"GET /v2 HTTP/1.1\r\nHost: a\r\n\r\n")).status == 200
        await port.pass_time(121)
        await port.until(lambda: len(port.proxy.connections) <= 3)
        small.close()


STREAM = "/v2/models/m/generate_stream"
HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\ndata: 1\n\n\r\n"
CALL = re.compile(r'"hf-triton-call": ?"([0-9a-f]{32})')


class Model:
    """Answers once its caller has left, as a model of ours does; a dead one never."""

    def __init__(self) -> None:
        self.port: Port
        self.is_dead = False
        self.left = asyncio.Event()

    async def __call__(self, request: Message, writer: asyncio.StreamWriter) -> None:
        found = CALL.search(request.body.decode())
        assert found
        if "generate_stream" in request.first:
            writer.write(HEAD)
        while not self.files(found[1]) or self.is_dead:
            await asyncio.sleep(0.01)
        self.left.set()
        writer.write(b"0\r\n\r\n" if "generate_stream" in request.first else answer())

    def files(self, name: str = "") -> list[Path]:
        """Those that say who has left."""
        return [path for path in self.port.folder.glob(f"left_{name}*") if path.suffix != ".told"]


async def ask_and_leave(port: Port, path: str) -> None:
    """Leaves once the request is with tritonserver, a stream once it has begun."""
    client = await port.client()
    body: dict[str, object] = {"inputs": []} if path == INFER else {"text_input": "x"}
    client.post(path, json.dumps(body).encode())
    num_asked = len(port.triton.asked)
    if path == STREAM:
        await client.reader.readuntil(b"data: 1")
    else:
        await port.until(lambda: len(port.triton.asked) > num_asked)
    client.writer.transport.abort()


@pytest.mark.parametrize("path", [GENERATE, INFER, STREAM])
async def test_a_model_of_ours_is_told_and_the_connection_goes_on(path: str) -> None:
    model = Model()
    async with open_port(script=model) as port:
        model.port = port
        port.supervisor.say_ours()
        await ask_and_leave(port, path)
        await asyncio.wait_for(model.left.wait(), 10)
        await port.until(lambda: not model.files())
        port.triton.script = echo
        assert (await port.post(GENERATE, b'{"text_input": "y"}')).status == 200
        assert port.triton.num_connections == 1


async def test_what_never_ends_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream, "LEFT_S", 0.1)
    model = Model()
    model.is_dead = True
    async with open_port(script=model) as port:
        model.port = port
        port.supervisor.say_ours()
        await ask_and_leave(port, GENERATE)
        await port.until(lambda: port.triton.num_open == 0)
        assert not model.files()
