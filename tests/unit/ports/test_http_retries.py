"""The HTTP port where what computes an answer dies: asked again, or ended with an event."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from generator.models_yaml.server_settings import Limits
from hf_triton.ports import bodies, retries
from hf_triton.ports.http.proxy import Exchange
from hf_triton.ports.settings import Access
from hf_triton.runtime.request.request_parameters import CALL
from tests.unit.ports.http_ports import (
    GENERATE,
    INFER,
    ONE_AT_ONCE,
    Client,
    Message,
    Port,
    Script,
    answer,
    answering,
    echo,
    open_port,
)

BODY = b'{"text_input": "x"}'
GONE = json.dumps({"error": "the engine m went away before it answered: try again"}).encode()
STREAM = "/v2/models/m/generate_stream"
CHUNKED = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)
EVENT = b"9\r\ndata: 1\n\n\r\n"


def in_turn(*scripts: Script) -> Script:
    """Each for one request."""
    left: Iterator[Script] = iter(scripts)

    async def script(request: Message, writer: asyncio.StreamWriter) -> None:
        await next(left)(request, writer)

    return script


@pytest.mark.parametrize("path", [GENERATE, INFER])
@pytest.mark.parametrize(
    "lost",
    [
        answering(then=lambda writer: writer.close()),
        answering(answer(GONE, status="400 Bad Request")),
        answering(answer(GONE, status="503 Service Unavailable")[:40], then=lambda w: w.close()),
    ],
    ids=["closed", "refused by a front", "cut in an error"],
)
async def test_what_was_not_answered_is_asked_again(path: str, lost: Script) -> None:
    body = BODY if path == GENERATE else b'{"inputs": []}'
    async with open_port(ONE_AT_ONCE, script=in_turn(lost, lost, echo, echo)) as port:
        port.supervisor.tell()
        client = await port.client()
        for _ in range(2):  # the connection goes on, and so does the account
            client.post(path, body)
            got = await client.answer()
            assert got.json == [f"POST {path} HTTP/1.1", body.decode().replace(" ", "")]
        assert len({asked.body for asked in port.triton.asked}) == 1


async def test_a_caller_who_leaves_while_it_waits_is_not_computed() -> None:
    async with open_port(ONE_AT_ONCE) as port:
        port.supervisor.tell(is_coming=True)
        client = await port.client()
        client.post(GENERATE, BODY)
        await asyncio.sleep(0.05)
        client.writer.transport.abort()
        await port.until(lambda: len(port.proxy.connections) == 0)
        port.supervisor.tell()
        assert (await port.post(GENERATE, b'{"text_input": "y"}')).status == 200
        assert [b"y" in asked.body for asked in port.triton.asked] == [True]


@pytest.mark.parametrize("text", ["x: got 1, allowed: 2", "model 'm' is not ready"])
async def test_an_error_of_the_request_itself_is_passed_on_as_it_is(text: str) -> None:
    body = json.dumps({"error": text}).encode()
    async with open_port(script=answering(answer(body, status="400 Bad Request"))) as port:
        if "ready" not in text:
            port.supervisor.tell()  # of others nobody knows that they come back
        assert (await port.post(GENERATE, BODY)).error == text
        assert len(port.triton.asked) == 1


async def test_a_stream_that_has_begun_ends_with_an_error_at_once() -> None:
    async with open_port(script=answering(CHUNKED, EVENT)) as port:
        port.supervisor.tell()
        client = await port.client()
        client.post(STREAM, BODY)
        await client.reader.readuntil(b"data: 1\n\n\r\n")
        port.supervisor.kill()
        *_, event, end, _, last = (await client.rest()).split(b"\r\n")
        assert "died while it answered" in json.loads(event.removeprefix(b"data: "))["error"]
        assert (end, last) == (b"0", b"")


@pytest.mark.usefixtures("no_collection")
@pytest.mark.parametrize(
    "path, body, end",
    [(STREAM, BODY, b"\r\n0\r\n\r\n"), (GENERATE, b"no JSON" * 50_000, b'"}')],
    ids=["streamed", "large and refused"],
)
async def test_an_ended_exchange_is_freed_without_the_garbage_collector(
    path: str, body: bytes, end: bytes
) -> None:
    async with open_port(script=answering(CHUNKED, EVENT, b"0\r\n\r\n")) as port:
        port.supervisor.tell()
        client = await port.client()
        client.post(path, body)
        await client.reader.readuntil(end)
        await port.until(lambda: not any(type(one) is Exchange for one in gc.get_objects()))


def numbered(number: int) -> bytes:
    event = b'data: {"token":%d}\n\n' % number
    return b"%x\r\n%b\r\n" % (len(event), event)


def events(data: bytes) -> list[object]:
    """Those in a chunked answer."""
    found = [json.loads(line[6:]) for line in data.split(b"\n") if line.startswith(b"data: ")]
    return [event.get("token", event.get("error")) for event in found]


class Generating:
    """A model that streams six tokens, and that the supervisor sees die ``num_deaths`` times, each
    behind ``num_before`` tokens and a half; it keeps a journal.
    """

    def __init__(self, num_deaths: int, num_before: int = 2) -> None:
        self.port: Port
        self.calls: list[str] = []
        self._num_deaths, self._num_before = num_deaths, num_before

    async def __call__(self, request: Message, writer: asyncio.StreamWriter) -> None:
        self.calls.append(json.loads(request.body)[CALL])
        _, num_told, _, journal = self.calls[-1].split("-")
        file = self.port.folder / f"left_{journal}.told"
        assert file.exists()
        file.write_bytes(b"{}\n")
        dies = len(self.calls) <= self._num_deaths
        left = [numbered(number) for number in range(int(num_told), 6)]
        whole = b"".join(left[: self._num_before]) if dies else b"".join(left)
        writer.write(CHUNKED + whole + (left[self._num_before][:9] if dies else b"0\r\n\r\n"))
        if dies:
            await asyncio.sleep(0.05)
            self.port.supervisor.kill()


@asynccontextmanager
async def open_model(model: Generating) -> AsyncIterator[Client]:
    async with open_port(ONE_AT_ONCE, script=model) as port:
        model.port = port
        port.supervisor.say_ours()
        yield await port.client()
        await port.until(lambda: not list(port.folder.glob("left_*.told")))


@pytest.mark.parametrize("num_deaths", [0, 1, 2])
async def test_a_stream_goes_on_without_a_seam_where_its_model_keeps_a_journal(
    num_deaths: int,
) -> None:
    async with open_model(model := Generating(num_deaths)) as client:
        for _ in range(2):  # the connection goes on, and so does the account
            client.post(STREAM, BODY)
            data = await client.reader.readuntil(b"\r\n0\r\n\r\n")
            assert events(data) == list(range(6))
            assert data.count(b"HTTP/1.1") == 1
    told = [int(call.split("-")[1]) for call in model.calls]
    assert told == [*(2 * number for number in range(num_deaths + 1)), 0]
    assert len({call.split("-")[3] for call in model.calls}) == 2


async def test_a_stream_that_is_lost_behind_its_head_has_one_all_the_same() -> None:
    async with open_model(Generating(1, num_before=0)) as client:
        client.post(STREAM, BODY)
        data = await client.reader.readuntil(b"\r\n0\r\n\r\n")
        assert events(data) == list(range(6))
        assert data.startswith(b"HTTP/1.1 200 OK\r\n")


@pytest.mark.parametrize(
    "status,text", [("400 Bad Request", "this stream can't go on"), ("500 x", "broken")]
)
async def test_one_that_the_next_process_refuses_ends_with_what_it_says(
    status: str, text: str
) -> None:
    refusal = answer(json.dumps({"error": text}).encode(), status=status)
    async with open_model(model := Generating(1)) as client:
        model.port.triton.script = in_turn(model, answering(refusal))
        client.post(STREAM, BODY)
        assert events(await client.rest()) == [0, 1, text]


async def test_a_whole_answer_that_has_begun_is_not_cut_off() -> None:
    whole = answer(b'"' + b"x" * 100 + b'"')
    async with open_port(script=answering(whole[:-50], b"", b"", b"", whole[-50:])) as port:
        port.supervisor.tell()
        client = await port.client()
        client.post(GENERATE, BODY)
        await client.reader.readuntil(b"\r\n\r\n")
        port.supervisor.kill()
        assert await client.reader.readexactly(102) == whole[-102:]


async def test_a_large_body_is_not_held_where_there_is_no_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bodies, "SMALL_BYTES", 10)
    lost = answering(then=lambda writer: writer.close())
    async with open_port(Access(limits=Limits()), script=lost) as port:
        port.supervisor.tell()
        port.proxy.bodies.all_bytes = 2 * len(BODY) - 1
        got = await port.post(GENERATE, BODY)
        assert (got.status, got.headers["retry-after"]) == (503, "1")
        assert len(port.triton.asked) == 1


async def test_a_tritonserver_that_has_died_is_waited_for_before_anybody_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(retries, "NOTICED_S", 0.05)
    async with open_port() as port:
        port.supervisor.tell()
        path, port.proxy.pool.path = port.proxy.pool.path, "nowhere"
        waiting = asyncio.create_task(port.post(GENERATE, BODY))
        await asyncio.sleep(0.3)
        assert not waiting.done()
        port.proxy.pool.path = path
        assert (await waiting).status == 200
