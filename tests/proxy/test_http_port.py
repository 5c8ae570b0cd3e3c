"""The HTTP port: what goes on to tritonserver and comes back, in which order, and what a client
that goes, does not read or comes in bad company changes about it.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable

import pytest

from generator.proxy.http_port import proxy as proxy_module
from generator.proxy.http_port.proxy import HttpProxy
from generator.proxy.settings import MIB, Access, Limits
from tests.proxy.http_ports import (
    Client,
    FakeTriton,
    Message,
    Port,
    Script,
    answer,
    echo,
    open_port,
)

INFER = "/v2/models/m/infer"
GENERATE = "/v2/models/m/generate"
HEAD: dict[str, object] = {"inputs": [{"name": "x", "datatype": "BYTES", "shape": [1]}]}
ONE_AT_ONCE = Access(limits=Limits(concurrent_requests=1))


def answering(*pieces: bytes, then: Callable[[asyncio.StreamWriter], None] | None = None) -> Script:
    """A tritonserver that writes ``pieces`` one by one."""

    async def script(_request: Message, writer: asyncio.StreamWriter) -> None:
        for piece in pieces:
            writer.write(piece)
            await asyncio.sleep(0.01)
        if then:
            then(writer)

    return script


async def never(_request: Message, _writer: asyncio.StreamWriter) -> None:
    """A tritonserver that is busy."""


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
        head = f"POST {GENERATE} HTTP/1.1\r\n{kind}Transfer-Encoding: chunked\r\n\r\n".encode()
        client.send(head + chunks)
        assert (await client.answer()).json[1] == '{"text_input":"hello"}'
        for request in port.triton.asked:
            assert request.headers["content-type"] == "application/json"
            assert request.headers["content-length"] == str(len(request.body))
            assert not {"transfer-encoding", "trailer"} & set(request.headers)
        assert port.triton.num_connections == 1


async def test_binary_data_follows_its_json_untouched() -> None:
    async with open_port() as port:
        client = await port.client()
        tensor = {**HEAD["inputs"][0], "parameters": {"binary_data_size": 6}}  # type: ignore[index]
        head, data = json.dumps({"inputs": [tensor]}, indent=1).encode(), b"\2\0\0\0\xff\n"
        client.post(INFER, head + data, f"inference-header-content-length: {len(head)}\r\n")
        assert (await client.answer()).status == 200
        (asked,) = port.triton.asked
        length = int(asked.headers["inference-header-content-length"])
        assert length < len(head)
        assert json.loads(asked.body[:length]) == {"inputs": [tensor]}
        assert asked.body[length:] == data


async def test_headers_of_one_connection_stay_on_it() -> None:
    async with open_port() as port:
        client = await port.client()
        client.get("/v2", "X-My: 1\r\nConnection: keep-alive\r\nTE: trailers\r\nExpect: \r\n")
        assert (await client.answer()).status == 417
        client = await port.client()
        client.get("/v2", "X-My: 1\r\nConnection: keep-alive\r\nTE: trailers\r\n")
        assert (await client.answer()).status == 200
        assert port.triton.asked[0].headers == {"host": "a", "x-my": "1"}


async def test_answers_come_in_the_order_of_their_requests() -> None:
    async def slow_first(request: Message, writer: asyncio.StreamWriter) -> None:
        if "/slow" in request.first:
            await asyncio.sleep(0.05)
        await echo(request, writer)

    async with open_port(script=slow_first) as port:
        client = await port.client()
        client.get("/slow")
        client.send(b"DELETE /later HTTP/1.1\r\n\r\n")
        client.get("/lost")
        assert (await client.answer()).json[0] == "GET /slow HTTP/1.1"
        assert (await client.answer()).status == 405
        assert await client.is_closed()
        client = await port.client()
        for number in range(60):
            client.get(f"/{number}")
        for number in range(60):
            assert (await client.answer()).json[0] == f"GET /{number} HTTP/1.1"


async def test_requests_are_not_taken_without_end() -> None:
    async with open_port(script=never) as port:
        client = await port.client()
        for number in range(100):
            client.get(f"/{number}")
        await port.until(lambda: len(port.triton.asked) == 1)
        client.writer.close()
        await port.until(lambda: port.triton.num_open == 0)
        assert len(port.triton.asked) == 1


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
        assert (await port.ask(b"GET /v2 HTTP/1.1\r\n\r\n")).status == 200


async def test_a_client_that_does_not_read_holds_up_nobody() -> None:
    large = answer(b"x" * 8 * MIB)
    async with open_port(script=answering(large)) as port:
        client = await port.client()
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        client.get("/large")
        client.get("/next")
        await port.until(lambda: len(port.triton.asked) == 1)
        port.triton.script = echo
        assert (await port.ask(b"GET /v2 HTTP/1.1\r\n\r\n")).status == 200
        assert [asked.first for asked in port.triton.asked][1:] == ["GET /v2 HTTP/1.1"]
        client.writer.transport.resume_reading()  # type: ignore[attr-defined]
        assert len((await client.answer()).body) == 8 * MIB
        assert (await client.answer()).json[0] == "GET /next HTTP/1.1"


async def test_a_kept_connection_is_read_again_after_one_who_did_not_read() -> None:
    async with open_port(script=answering(answer(b"x" * 200_000))) as port:
        small = socket.socket()
        small.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        number = port._number
        await asyncio.get_running_loop().run_in_executor(None, small.connect, ("127.0.0.1", number))
        for _ in range(40):
            small.send(b"GET / HTTP/1.1\r\n\r\n")
        await asyncio.sleep(0.3)
        for _ in range(3):
            assert (await port.ask(b"GET /v2 HTTP/1.1\r\n\r\n")).status == 200
        await port.pass_time(121)
        await port.until(lambda: port.proxy.num_connections <= 3)
        small.close()


async def test_one_that_asks_for_another_protocol_gets_this_one() -> None:
    async with open_port() as port:
        client = await port.client()
        upgrade = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n"
        for number in range(3):
            client.post(GENERATE, b'{"a":%d}' % number, upgrade)
        client.get("/v2", upgrade)
        head = f"POST {GENERATE} HTTP/1.1\r\n{upgrade}Transfer-Encoding: chunked\r\n\r\n".encode()
        client.send(head + b"1\r\n{\r\n")
        for number in range(3):
            assert (await client.answer()).json[1] == f'{{"a":{number}}}'
        assert (await client.answer()).json[0] == "GET /v2 HTTP/1.1"
        client.send(b"1\r\n}\r\n0\r\n\r\n")
        assert (await client.answer()).json[1] == "{}"
        assert "upgrade" not in port.triton.asked[0].headers


async def test_http_1_0_gets_its_answer_and_the_end() -> None:
    script = answering(b"HTTP/1.0 200 OK\r\n\r\n", b"half", b"half", then=lambda w: w.close())
    async with open_port(script=script) as port:
        client = await port.client()
        client.send(b"GET /v2 HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        assert await client.rest() == b"HTTP/1.0 200 OK\r\n\r\nhalfhalf"
        assert port.triton.asked[0].first == "GET /v2 HTTP/1.0"


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


async def test_a_tritonserver_that_dies_is_told_of() -> None:
    async with open_port(ONE_AT_ONCE, script=answering(then=lambda w: w.close())) as port:
        client = await port.client()
        client.post(GENERATE, b"{}")
        got = await client.answer()
        assert (got.status, got.headers["connection"]) == (502, "close")
        assert "ended" in got.error
        assert await client.is_closed()
        port.triton.script = answering(answer(b"12345")[:-1], then=lambda w: w.close())
        client = await port.client()
        client.get("/v2")
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await client.answer()  # cut off: no end that looks like one
        port.triton.script = echo
        assert (await port.ask(b"GET /v2 HTTP/1.1\r\n\r\n")).status == 200


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
        port.proxy.pool._path += ".not-there"
        client = await port.client()
        for _ in range(2):
            client.post(GENERATE, b"{}")
            got = await client.answer()
            assert (got.status, got.headers["retry-after"]) == (503, "1")
            assert got.headers["connection"] == "keep-alive"
            assert "being started" in got.error


async def test_more_at_once_than_tritonserver_accepts_at_once_are_served() -> None:
    async with open_port() as port:
        path = port.proxy.pool._path + ".slow"
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(path)
        listening.listen(1)
        port.proxy.pool._path = path
        clients = [await port.client() for _ in range(5)]
        for client in clients:
            client.get("/v2")
        await asyncio.sleep(0.05)
        server = await asyncio.start_unix_server(port.triton.serve, sock=listening, backlog=1)
        assert [(await client.answer()).status for client in clients] == [200] * 5
        server.close()


CLASSIFIED = {**HEAD, "outputs": [{"name": "y", "parameters": {"classification": 3}}]}


@pytest.mark.parametrize("kind, status", [("FP32", 200), ("BYTES", 400)])
async def test_classes_are_of_numbers(kind: str, status: int) -> None:
    async def script(request: Message, writer: asyncio.StreamWriter) -> None:
        if request.first.startswith("GET"):
            found = {"outputs": [{"name": "y", "datatype": kind}]}
            writer.write(answer(json.dumps(found).encode()))
        else:
            await echo(request, writer)

    async with open_port(ONE_AT_ONCE, script=script) as port:
        client = await port.client()
        for _ in range(2):
            client.post(INFER, json.dumps(CLASSIFIED).encode())
            assert (await client.answer()).status == status
        assert port.triton.asked[0].first == "GET /v2/models/m HTTP/1.1"
        assert port.triton.num_connections == 1


async def test_a_client_that_goes_while_a_check_is_under_way_leaves_nothing() -> None:
    go = asyncio.Event()

    async def script(request: Message, writer: asyncio.StreamWriter) -> None:
        await go.wait()
        await echo(request, writer)

    async with open_port(ONE_AT_ONCE, script=script) as port:
        client = await port.client()
        client.post(INFER, json.dumps(CLASSIFIED).encode())
        await port.until(lambda: len(port.triton.asked) == 1)
        client.writer.transport.abort()
        await port.until(lambda: port.proxy.num_connections == 0)
        go.set()
        assert (await port.ask(b"GET /v2 HTTP/1.1\r\n\r\n")).status == 200
        assert len(port.triton.asked) == 2
        client = await port.client()  # goes before the check has begun
        client.post(INFER, json.dumps(CLASSIFIED).encode())
        client.writer.close()
        await port.until(lambda: port.proxy.num_connections == 1)


async def send_part(port: Port, num_bytes: int) -> Client:
    """A client that has sent so much of a body that is twice as long."""
    client = await port.client()
    head = f"POST {GENERATE} HTTP/1.1\r\nContent-Length: {2 * num_bytes}\r\n\r\n"
    before = port.proxy.num_buffered
    client.send(head.encode() + b" " * num_bytes)
    await port.until(lambda: port.proxy.num_buffered == before + num_bytes)
    return client


async def test_bodies_that_wait_have_a_room_of_bounded_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(proxy_module, "_BUFFERED_MIB", 1)
    async with open_port() as port:
        waiting = await send_part(port, MIB - 1000)
        client = await port.client()
        client.post(GENERATE, b" " * 100_000)
        got = await client.answer()
        assert (got.status, got.headers["retry-after"]) == (503, "1")
        assert await client.is_closed()
        small = b'{"text_input": "%s"}' % (b"x" * 2000)
        client = await port.client()
        client.post(GENERATE, small)
        assert (await client.answer()).status == 200
        waiting.writer.close()
        await port.until(lambda: port.proxy.num_buffered == 0)


async def test_a_body_counts_until_tritonserver_has_read_it() -> None:
    reading = asyncio.Event()

    class SlowTriton(FakeTriton):
        async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reading.wait()
            await super().serve(reader, writer)

    async with open_port() as port:
        path = port.proxy.pool._path + ".slow"
        triton = SlowTriton()
        server = await asyncio.start_unix_server(triton.serve, path)
        port.proxy.pool._path = path
        clients = [await port.client() for _ in range(2)]
        for client in clients:
            client.post(GENERATE, b'{"text_input": "%s"}' % (b"x" * 4 * MIB))
        await port.until(lambda: port.proxy.num_buffered > 8 * MIB)
        clients[0].writer.transport.abort()
        await port.until(lambda: port.proxy.num_buffered < 5 * MIB)
        assert port.proxy.num_buffered > 4 * MIB
        reading.set()
        assert (await clients[1].answer()).status == 200
        assert port.proxy.num_buffered == 0
        server.close()


async def test_where_there_are_too_many_connections_an_idle_one_goes() -> None:
    async with open_port(script=never) as port:
        port.proxy._max_connections = 3
        busy = await port.client()
        busy.get("/busy")
        await port.until(lambda: len(port.triton.asked) == 1)
        oldest = await port.client()
        await port.until(lambda: port.proxy.num_connections == 2)
        await port.pass_time(1)
        others = [await port.client() for _ in range(4)]
        assert await oldest.is_closed()
        await port.until(lambda: port.proxy.num_connections == 3)
        port.triton.script = echo
        others[-1].get("/v2")
        assert (await others[-1].answer()).status == 200
        assert not busy.reader.at_eof()


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
        await port.until(lambda: port.proxy.num_connections == 0)
        await port.until(lambda: port.triton.num_open == 0)


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
        assert got.error == "internal error of the proxy: KeyError"
        client.post(GENERATE, b"{}")
        assert (await client.answer()).status == 200


async def test_a_bug_in_reading_is_an_answer_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_proxy: HttpProxy, _request: object, _address: str) -> None:
        raise KeyError("secret")

    monkeypatch.setattr(HttpProxy, "judge", fail)
    async with open_port() as port:
        client = await port.client()
        client.post(GENERATE, b"{}")
        assert (await client.answer()).status == 500
        assert await client.is_closed()


async def test_clients_may_go_at_any_byte() -> None:
    whole = f"POST {GENERATE} HTTP/1.1\r\nContent-Length: 30\r\n\r\n".encode() + b"{}" + b" " * 28
    async with open_port(ONE_AT_ONCE) as port:
        for cut in range(1, len(whole) + 1):
            client = await port.client()
            client.send(whole[:cut])
            await asyncio.sleep(0)
            client.writer.close()
        await port.until(lambda: port.proxy.num_connections == 0)
        assert (await port.ask(whole)).status == 200
