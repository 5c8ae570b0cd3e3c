"""A public HTTP port in front of a tritonserver that answers as a test tells it to."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from generator.models_yaml.server_settings import Limits
from hf_triton.ports.http.connection import HttpConnection
from hf_triton.ports.http.proxy import HttpProxy
from hf_triton.ports.port import Shared
from hf_triton.ports.retries import Model, RetryCoordinator, line_of
from hf_triton.ports.settings import EVERYBODY, Access
from hf_triton.tritonserver.model_state import Cause

PATIENCE_S = 10.0
INFER = "/v2/models/m/infer"
GENERATE = "/v2/models/m/generate"
HEAD: dict[str, object] = {"inputs": [{"name": "x", "datatype": "BYTES", "shape": [1]}]}
CLASSIFIED = {**HEAD, "outputs": [{"name": "y", "parameters": {"classification": 3}}]}
ONE_AT_ONCE = Access(limits=Limits(concurrent_requests=1))


@dataclass
class Message:
    """A request or an answer; names of headers are lower case."""

    first: str
    headers: dict[str, str]
    body: bytes = b""

    @property
    def status(self) -> int:
        """An answer's HTTP status."""
        return int(self.first.split()[1])

    @property
    def json(self) -> Any:
        """The body, parsed."""
        return json.loads(self.body)

    @property
    def error(self) -> str:
        """The text of a refusal: JSON with nothing else."""
        assert self.headers["content-type"] == "application/json"
        assert list(self.json) == ["error"]
        return str(self.json["error"])


async def read_message(reader: asyncio.StreamReader) -> Message:
    """The next one, with its body where it has a length."""
    head = await reader.readuntil(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    length = int(headers.get("content-length", "0"))
    return Message(first, headers, await reader.readexactly(length))


Script = Callable[[Message, asyncio.StreamWriter], Awaitable[None]]


def answer(body: bytes = b"{}", *, headers: str = "", status: str = "200 OK") -> bytes:
    """An answer of Triton's, in bytes."""
    return (
        f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\n{headers}"
        f"Content-Length: {len(body)}\r\n\r\n"
    ).encode() + body


async def echo(request: Message, writer: asyncio.StreamWriter) -> None:
    """Tells what was asked."""
    writer.write(answer(json.dumps([request.first, request.body.decode("latin-1")]).encode()))


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


@dataclass
class FakeTriton:
    """A fake Triton that counts its requests, its connections, and those that are open."""

    script: Script = echo
    asked: list[Message] = field(default_factory=list)
    num_connections: int = 0
    num_open: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection of the proxy's."""
        self.num_connections += 1
        self.num_open += 1
        work: asyncio.Task[None] | None = None
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                self.asked.append(await read_message(reader))
                work = asyncio.ensure_future(self._answer(self.asked[-1], writer))
        if work:
            work.cancel()
        self.num_open -= 1
        writer.close()

    async def _answer(self, request: Message, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            await self.script(request, writer)


class Client:
    """One connection to the port."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, data: bytes) -> None:
        """As it is."""
        self.writer.write(data)

    def post(self, path: str, body: bytes, headers: str = "") -> None:
        """A whole request."""
        head = f"POST {path} HTTP/1.1\r\nHost: a\r\n{headers}Content-Length: {len(body)}\r\n\r\n"
        self.send(head.encode() + body)

    def get(self, path: str, headers: str = "") -> None:
        """A whole request."""
        self.send(f"GET {path} HTTP/1.1\r\nHost: a\r\n{headers}\r\n".encode())

    async def answer(self) -> Message:
        """The next one."""
        return await asyncio.wait_for(read_message(self.reader), PATIENCE_S)

    async def rest(self) -> bytes:
        """All until the proxy closes."""
        return await asyncio.wait_for(self.reader.read(), PATIENCE_S)

    async def is_closed(self) -> bool:
        """True if the proxy has closed, or closes now."""
        with contextlib.suppress(ConnectionError):
            return await self.rest() == b""
        return True


class Supervisor:
    """Tells a port of the model ``m``."""

    def __init__(self, port: RetryCoordinator) -> None:
        self.port, self._num_deaths = port, 0
        self.is_ours = False

    def tell(self, why: str = "", cause: Cause = Cause.HUNG, *, is_coming: bool = False) -> None:
        """It is ready, or down and comes back."""
        model = Model(is_coming, self._num_deaths, why, cause, is_ours=self.is_ours)
        self.port.follow(line_of({"m": model}))

    def say_ours(self) -> None:
        """It runs our library."""
        self.is_ours = True
        self.tell()

    def kill(self, why: str = "it was killed", cause: Cause = Cause.KILLED) -> None:
        """Its process dies, and it is back at once."""
        self._num_deaths += 1
        self.tell(why, cause, is_coming=True)
        self.tell(why, cause)


class Port:
    """The proxy with its port, and the tritonserver behind."""

    def __init__(self, proxy: HttpProxy, triton: FakeTriton, number: int) -> None:
        self.proxy, self.triton, self.number = proxy, triton, number
        self.clients: list[Client] = []
        self.folder: Path
        self.supervisor = Supervisor(proxy.retries)
        self._now_s = 1000.0
        proxy.now = lambda: self._now_s

    async def client(self, tls: ssl.SSLContext | None = None) -> Client:
        """A new connection."""
        pair = await asyncio.open_connection("127.0.0.1", self.number, ssl=tls)
        self.clients.append(Client(*pair))
        return self.clients[-1]

    async def ask(self, request: bytes) -> Message:
        """The answer to a request on a connection of its own."""
        client = await self.client()
        client.send(request)
        return await client.answer()

    async def post(self, path: str, body: bytes = b"{}", headers: str = "") -> Message:
        """The answer to a POST on a connection of its own."""
        client = await self.client()
        client.post(path, body, headers)
        return await client.answer()

    async def get(self, path: str, headers: str = "") -> Message:
        """The answer to a GET on a connection of its own."""
        client = await self.client()
        client.get(path, headers)
        return await client.answer()

    async def pass_time(self, seconds: float) -> None:
        """As far as the proxy knows; what is under way gets on first."""
        await asyncio.sleep(0.02)
        self._now_s += seconds
        self.proxy.sweep()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Waits for what happens by itself."""

        async def look() -> None:
            while not holds():
                await asyncio.sleep(0.002)

        await asyncio.wait_for(look(), PATIENCE_S)


@contextlib.asynccontextmanager
async def open_port(
    access: Access = EVERYBODY,
    *,
    script: Script = echo,
    tls: ssl.SSLContext | None = None,
    admin_key: str = "",
) -> AsyncIterator[Port]:
    """Both, until the test is over; then nothing may be left, nor may anything have failed."""
    loop, failures, triton = asyncio.get_running_loop(), [], FakeTriton(script)
    loop.set_exception_handler(lambda _loop, context: failures.append(context))
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "triton"))
        behind = await asyncio.start_unix_server(triton.serve, path)
        retries = RetryCoordinator(f"{folder}/left_", repository=Path(folder))
        together = Shared(access, admin_key, retries, Path(folder))
        proxy = HttpProxy(together, path)
        server = await loop.create_server(lambda: HttpConnection(proxy), "127.0.0.1", 0, ssl=tls)
        port = Port(proxy, triton, server.sockets[0].getsockname()[1])
        port.folder = Path(folder)
        try:
            yield port
        finally:
            for client in port.clients:
                client.writer.transport.abort()
            await port.until(lambda: len(proxy.connections) == 0)
            server.close()
            proxy.pool.close()
            behind.close()
            await port.until(lambda: triton.num_open == 0)
    assert proxy.bodies.num_bytes == 0
    assert not failures
