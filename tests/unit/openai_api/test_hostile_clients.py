"""Clients that mean harm, or send slowly: they are refused, and others are answered."""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import socket
import time
from collections.abc import Iterator

import pytest
import uvloop
from aiohttp import web

from hf_triton.ports import port as port_module
from hf_triton.ports.openai import connections
from hf_triton.ports.settings import Access
from tests.support.triton import eventually
from tests.unit.openai_api.conftest import Starter, Translator

HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
SOON_S = 20.0


@pytest.fixture
def closing() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


def opened(api: Translator, closing: contextlib.ExitStack, data: bytes) -> socket.socket:
    port = int(api.url.rpartition(":")[2])
    client = closing.enter_context(socket.create_connection(("127.0.0.1", port), SOON_S))
    client.sendall(data)
    return client


def status_of(client: socket.socket) -> int:
    return int(client.recv(4096).split(b" ")[1])


def is_closed(client: socket.socket) -> bool:
    client.setblocking(False)
    try:
        return client.recv(4096) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def of_one_mib(starter: Starter) -> Translator:
    return starter.api(access=Access(max_body_mib=1))


def with_key(starter: Starter) -> Translator:
    return starter.api(key="secret-key")


@pytest.mark.threat("encoded-bodies")
@pytest.mark.parametrize(
    "encoding", ["gzip", "deflate", "br", "zstd", "identity, gzip", "nonsense"]
)
def test_an_encoded_body_is_refused_before_it_is_read(
    encoding: str, api: Translator, closing: contextlib.ExitStack
) -> None:
    head = HEAD + f"Content-Encoding: {encoding}\r\nContent-Length: 1000\r\n\r\n".encode()
    client = opened(api, closing, head)
    answer = client.recv(4096)
    assert answer.startswith(b"HTTP/1.1 415 ")
    error = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
    assert error["type"] == "invalid_request_error"
    assert "Content-Encoding" in error["message"]


@pytest.mark.threat("openai-work-without-key")
def test_the_key_is_asked_for_before_a_body_is_read(
    starter: Starter, closing: contextlib.ExitStack
) -> None:
    api = with_key(starter)
    for more in (b"", b"Content-Encoding: gzip\r\n", b"Expect: 100-continue\r\n"):
        client = opened(api, closing, HEAD + more + b"Content-Length: 1000\r\n\r\n")
        answer = client.recv(4096).removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n")
        assert (answer or client.recv(4096)).startswith(b"HTTP/1.1 401 ")


@pytest.mark.threat("doubled-headers")
@pytest.mark.parametrize(
    "first, second, status",
    [
        (b"Authorization: Bearer KEY", b"authorization: Bearer other", 400),
        (b"authorization: Bearer other", b"Authorization: Bearer KEY", 400),
        (b"Authorization: Bearer KEY", b"x-api-key: other", 400),
        (b"x-api-key: KEY", b"X-Api-Key: other", 400),
        (b"x-api-key: KEY", b"Authorization: Bearer KEY", 200),
        (b"x-api-key: KEY", b"Host: other", 400),
        (b"x-api-key: KEY", b"Content-Type: a/b\r\nContent-Type: c/d", 400),
        (b"x-api-key: KEY", b"Content-Length: 0\r\nContent-Length: 0", 400),
        (b"x-api-key: KEY", b"Content-Length: 0\r\nTransfer-Encoding: chunked", 400),
    ],
)
def test_a_header_that_counts_comes_once(
    first: bytes, second: bytes, status: int, starter: Starter, closing: contextlib.ExitStack
) -> None:
    asked = b"GET /v1/models HTTP/1.1\r\nHost: a\r\n" + first + b"\r\n" + second + b"\r\n\r\n"
    client = opened(with_key(starter), closing, asked.replace(b"KEY", b"secret-key"))
    assert status_of(client) == status


@pytest.mark.threat("doubled-headers")
@pytest.mark.parametrize(
    "target, host, status",
    [
        (b"/v1/models", b"a", 200),
        (b"http://other/v1/models", b"a", 200),
        (b"/v1/models", b"a, b", 400),
        (b"/v1/models", b"a/b", 400),
        (b"/v1/models", b"[", 400),
        (b"/v1/models", b"a@b", 400),
        (b"http://a@b/v1/models", b"b", 400),
    ],
)
def test_a_host_is_one(
    target: bytes, host: bytes, status: int, api: Translator, closing: contextlib.ExitStack
) -> None:
    asked = b"GET " + target + b" HTTP/1.1\r\nHost: " + host + b"\r\n\r\n"
    assert status_of(opened(api, closing, asked)) == status


def test_a_length_beyond_the_limit_is_refused_before_it_is_sent(
    starter: Starter, closing: contextlib.ExitStack
) -> None:
    api = of_one_mib(starter)
    client = opened(api, closing, HEAD + b"Content-Length: 1048577\r\n\r\n")
    answer = client.recv(4096)
    assert answer.startswith(b"HTTP/1.1 413 ")
    told = b"the body: got 1048577 bytes, allowed: 1 MiB (max_body_mib in models.yaml's server:)"
    assert told in answer


def test_a_body_without_a_length_is_bounded_too(
    starter: Starter, closing: contextlib.ExitStack
) -> None:
    api = of_one_mib(starter)
    client = opened(api, closing, HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
    client.sendall(b"80000\r\n" + b" " * 0x80000 + b"\r\n")
    client.sendall(b"80001\r\n" + b" " * 0x80001 + b"\r\n")
    assert status_of(client) == 413


def test_a_trailer_is_no_header_of_the_next_request(
    starter: Starter, closing: contextlib.ExitStack
) -> None:
    """A gateway's connection may have requests of several callers."""
    head = HEAD.replace(b"\r\n", b"\r\nx-api-key: secret-key\r\n", 1)
    chunks = b"2\r\n{}\r\n0\r\nx-api-key: secret-key\r\n\r\n"
    client = opened(
        with_key(starter), closing, head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks
    )
    client.sendall(b"GET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n")
    answers = b"".join(iter(lambda: client.recv(4096), b""))
    assert answers.startswith(b"HTTP/1.1 400 ")
    assert answers.count(b"HTTP/1.1 ") == 1


def test_a_larger_body_is_read_where_models_yaml_allows_it(
    starter: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hf_triton.ports.bodies.ALL_MIB", 1)
    api = starter.api(access=Access(max_body_mib=3))
    spaces = b" " * (2 * 2**20)  # more than all large ones have otherwise
    reply = api.send("POST", "/v1/completions", b'{"model": "echo", "prompt": "a"' + spaces + b"}")
    assert reply.status == 200, reply.text[:500]


@pytest.mark.threat("slow-openai-clients")
@pytest.mark.parametrize("sent", [b"", b"POST /v1/comple", HEAD, b"GET /health HTTP/1.1\r\n\r\n"])
def test_who_sends_no_whole_request_is_hung_up_on(
    sent: bytes, api: Translator, closing: contextlib.ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "IDLE_S", 0.3)
    monkeypatch.setattr(connections, "HEAD_S", 0.3)
    client = opened(api, closing, sent)
    if sent.startswith(b"GET"):
        assert status_of(client) == 400  # no Host; then it is as idle as after any other answer
    assert eventually(lambda: is_closed(client), SOON_S)


@pytest.mark.threat("slow-openai-clients")
def test_headers_that_drip_do_not_keep_a_connection(
    api: Translator, closing: contextlib.ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "HEAD_S", 0.5)
    client = opened(api, closing, HEAD)

    def drip_until_closed() -> bool:
        with contextlib.suppress(OSError):
            client.sendall(b"X: y\r\n")
        return is_closed(client)

    assert eventually(drip_until_closed, SOON_S)


@pytest.mark.threat("slow-openai-clients")
def test_slow_senders_keep_nobody_out(
    starter: Starter, closing: contextlib.ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(port_module, "max_connections", lambda: 8)
    api = starter.api()
    body = b'{"model": "whole", "prompt": "a !waits"}'
    request = HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body
    answered = opened(api, closing, request)
    assert eventually(lambda: api.triton.num_waiting == 1)
    slow = [opened(api, closing, HEAD + b"Content-Length: 9\r\n\r\n{") for _ in range(20)]
    assert api.completion().status == 200
    assert eventually(lambda: sum(map(is_closed, slow)) >= 12)
    assert not is_closed(answered), "who waits for an answer stays"


@pytest.mark.threat("slow-openai-clients")
def test_who_takes_nothing_of_an_answer_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "UNREAD_S", 0.5)
    assert uvloop.run(asyncio.wait_for(an_endless_answer_ends(), SOON_S))


async def an_endless_answer_ends() -> bool:
    ended = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        try:
            while True:
                await response.write(bytes(2**16))
        finally:
            ended.set()

    application = web.Application(middlewares=[connections.followed])
    application.router.add_get("/", answer)
    runner = web.AppRunner(application, handler_cancellation=True)
    await runner.setup()
    port = port_module.Port(port_module.Shared())
    server = await asyncio.get_running_loop().create_server(
        lambda: connections.Connection(runner.server, port), "127.0.0.1", 0
    )
    with socket.create_connection(server.sockets[0].getsockname()) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        while not ended.is_set():
            await asyncio.sleep(0.05)
            port.sweep()
    server.close()
    await runner.cleanup()
    return True


@pytest.mark.parametrize(
    "soft, most", [(1024, 120), (2**20, 16_384), (resource.RLIM_INFINITY, 16_384)]
)
def test_connections_leave_descriptors_for_the_rest(
    soft: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _limit: (soft, soft))
    assert port_module.Port(port_module.Shared()).connections.most == most


@pytest.mark.threat("openai-bodies")
def test_large_bodies_together_are_bounded_and_small_ones_are_read(
    starter: Starter, closing: contextlib.ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hf_triton.ports.bodies.ALL_MIB", 1)
    api = of_one_mib(starter)  # two of which have room
    part = HEAD + b"Content-Length: 1000000\r\n\r\n" + b" " * 990_000
    held = [opened(api, closing, part) for _ in range(2)]
    assert eventually(lambda: api.completion(prompt="a" * 200_000).status == 503)
    assert status_of(opened(api, closing, part)) == 503
    assert api.completion().status == 200
    for client in held:
        client.close()
    assert eventually(lambda: api.completion(prompt="a" * 200_000).status == 200)


@pytest.mark.threat("openai-bodies")
@pytest.mark.parametrize(
    "value",
    [
        b"[" + b"[]," * 400_000 + b"0]",
        b"{" + b",".join(b'"%x":0' % name for name in range(300_000)) + b"}",
        b"{" + b",".join(b'"%x":0' % name for name in range(100_000)) + b',"1869f":0}',
        b"[" + b"7," * 3_000_000 + b"0]",
        b'"a", "stop": [' + b'"",' * 10_000_000 + b'""]',
    ],
    ids=["lists", "names", "a name given twice", "numbers", "texts"],
)
def test_a_body_that_is_all_structure_holds_nobody_up(value: bytes, api: Translator) -> None:
    began = time.process_time()
    reply = api.send("POST", "/v1/completions", b'{"model": "echo", "prompt": ' + value + b"}")
    assert reply.status == 400
    assert len(reply.text) < 500
    assert time.process_time() - began < 3, "the translator is in this process"
    assert api.completion().status == 200


def test_who_goes_in_the_middle_of_a_body_leaves_no_line_in_the_log(
    api: Translator, closing: contextlib.ExitStack, capfd: pytest.CaptureFixture[str]
) -> None:
    for _ in range(5):
        opened(api, closing, HEAD + b"Content-Length: 9\r\n\r\n{").close()
    assert api.completion().status == 200
    assert capfd.readouterr().err == ""


def test_a_stack_that_is_too_deep_is_the_clients_mistake(
    api: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_deep(_data: bytes) -> dict[str, object]:
        raise RecursionError

    monkeypatch.setattr("hf_triton.ports.openai.app.read_object", too_deep)
    assert api.completion().status == 400
