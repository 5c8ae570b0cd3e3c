"""A client of whole and streamed answers that costs little: bytes are noted with their time as they
come, and read when the answer is complete.

Knows HTTP/1.1, chunked bodies and server-sent events; knows nothing of what an event says.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from perf.load.loop import Answer, Ask
from perf.load.requests import Request

_END_OF_HEAD = b"\r\n\r\n"
_END_OF_CHUNKS = b"\r\n0\r\n\r\n"
_DATA = b"data:"


@dataclass
class Response:
    """The bytes of one response, and when (perf_counter) they came: (seconds, bytes so far)."""

    raw: bytearray = field(default_factory=bytearray)
    arrivals: list[tuple[float, int]] = field(default_factory=list)
    _body_start: int | None = None  # known once the head is there
    _length: int | None = None  # of the body, where the head states it; else it comes in chunks

    def add(self, data: bytes, now_s: float) -> None:
        self.raw += data
        self.arrivals.append((now_s, len(self.raw)))
        if self._body_start is None and _END_OF_HEAD in self.raw:
            self._read_head()

    @property
    def is_complete(self) -> bool:
        """Whether the body is all there."""
        if self._body_start is None:
            return False
        if self._length is None:
            return self.raw.endswith(_END_OF_CHUNKS)
        return len(self.raw) >= self._body_start + self._length

    @property
    def status(self) -> int:
        return int(self.raw.split(b" ", 2)[1])

    def body(self) -> bytes:
        """The whole body, put together."""
        if self._length is not None:
            return bytes(self.raw[self._body_start :])
        return b"".join(data for data, _ in self._chunks())

    def events(self) -> Iterator[tuple[bytes, float]]:
        """What each event carries, and when its last byte came."""
        waiting, arrivals = b"", iter(self.arrivals)
        seconds, num_bytes = next(arrivals)
        for data, end in self._chunks():
            while num_bytes < end:
                seconds, num_bytes = next(arrivals)
            *events, waiting = (waiting + data).split(b"\n\n")
            for event in events:
                yield event.strip().removeprefix(_DATA).strip(), seconds

    def _chunks(self) -> Iterator[tuple[bytes, int]]:
        """What each HTTP chunk carries, and where in the response that ends."""
        begin = self._body_start or 0
        while True:
            line_end = self.raw.index(b"\r\n", begin)
            size = int(self.raw[begin:line_end].split(b";")[0], 16)
            if not size:
                return
            end = line_end + 2 + size
            yield bytes(self.raw[line_end + 2 : end]), end
            begin = end + 2

    def _read_head(self) -> None:
        head, _, _ = self.raw.partition(_END_OF_HEAD)
        self._body_start = len(head) + len(_END_OF_HEAD)
        lines = head.lower().split(b"\r\n")
        stated = [line for line in lines if line.startswith(b"content-length:")]
        self._length = int(stated[0].split(b":")[1]) if stated else None


class Connection(asyncio.Protocol):
    """One kept-open connection, one request at a time."""

    def __init__(self) -> None:
        self._response = Response()
        self._done: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    async def post(self, request: bytes) -> Response:
        """Send a whole request and return the whole response. Raises ``ConnectionError``."""
        self._response = Response()
        self._done = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        await self._done
        return self._response

    def data_received(self, data: bytes) -> None:
        self._response.add(data, time.perf_counter())
        if self._done and not self._done.done() and self._response.is_complete:
            self._done.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        if self._done and not self._done.done():
            self._done.set_exception(error or ConnectionError("the server closed the connection"))


@dataclass(frozen=True)
class Target:
    """One kind of server under test: what it is sent, where, and how its answer is read."""

    name: str
    path: str  # {model} stands for the model's name
    body: Callable[[Request], Mapping[str, object] | str]
    read: Callable[[Request, Response], Answer]
    """Checks an answer too; raises ``AnswerError``."""


@asynccontextmanager
async def connect(host: str, port: int, target: Target, model: str = "") -> AsyncIterator[Ask]:
    """One kept-open connection. Raises ``OSError`` where the server is gone."""
    loop = asyncio.get_running_loop()
    transport, connection = await loop.create_connection(Connection, host, port)
    head = head_of_post(target.path.format(model=model or target.name), host)

    async def ask(request: Request) -> Answer:
        body = target.body(request)
        data = (body if isinstance(body, str) else json.dumps(body)).encode()
        return target.read(
            request, await connection.post(f"{head}{len(data)}\r\n\r\n".encode() + data)
        )

    try:
        yield ask
    finally:
        transport.close()


def head_of_post(path: str, host: str) -> str:
    """The head of a request with JSON, up to its length."""
    fields = f"Host: {host}\r\nContent-Type: application/json\r\nContent-Length: "
    return f"POST {path} HTTP/1.1\r\n{fields}"
