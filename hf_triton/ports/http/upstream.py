"""Connections to tritonserver's Unix socket, kept for the next request."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import httptools

from hf_triton.ports.call_files import LEFT_S, AbandonedRequests
from hf_triton.ports.time_limit import timeout

_PAUSES_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
_MAX_UNREAD_BYTES = 1 << 16


class LostError(Exception):
    """The connection was closed before the answer was complete."""


class Upstream(asyncio.Protocol):
    """One connection, with at most one request on it. ``status`` is the answer's, 0 before it is
    known, ``keeps_alive`` whether the connection goes on after it, ``is_between_chunks`` whether
    another chunk may follow what has come, and ``is_sent`` whether Triton has all of the request.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._transport: Any = None
        self._change: asyncio.Future[None] | None = None
        self._unread = b""
        self._is_complete = True  # no request yet
        self._is_lost = self.keeps_alive = self.is_between_chunks = False
        self.is_sent = True
        self.status = 0

    async def send(self, request: bytes) -> None:
        """Sends a whole request; returns once Triton has it, or answers before that."""
        self._is_complete = self.is_between_chunks = False
        self.status = 0
        self._parser = httptools.HttpResponseParser(self)
        self._transport.write(request)
        while not (self.is_sent or self.status or self._is_lost):
            await self._changed()

    async def read(self) -> bytes:
        """The next bytes of the answer, head and body alike; b"" at its end. Raises LostError."""
        while not (self._unread or self._is_complete):
            if self._is_lost:
                raise LostError
            await self._changed()
        data, self._unread = self._unread, b""
        self._transport.resume_reading()
        return data

    def release(self) -> None:
        """Keeps the connection for the next request, or closes it where not all of the answer was
        read: Triton sees that, and cancels.
        """
        is_read = self._is_complete and not self._unread
        is_open = self.keeps_alive and not self._transport.is_closing()
        if is_read and is_open and self.is_sent:
            self._pool.give_back(self)
        else:
            self.abort()

    def abort(self) -> None:
        self._pool.remove(self)
        self._transport.abort()

    def close(self) -> None:
        self._transport.close()

    async def _changed(self) -> None:
        self._change = asyncio.get_running_loop().create_future()
        await self._change

    def _wake(self) -> None:
        if self._change and not self._change.done():
            self._change.set_result(None)

    # Called by asyncio and httptools.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if self._is_complete:  # it was not requested
            self.abort()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.abort()
            return
        self._unread += data
        if len(self._unread) > _MAX_UNREAD_BYTES:
            self._transport.pause_reading()
        self._wake()

    def pause_writing(self) -> None:
        self.is_sent = False

    def resume_writing(self) -> None:
        self.is_sent = True
        self._wake()

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        self.keeps_alive = self._parser.should_keep_alive()

    def on_chunk_header(self) -> None:
        self.is_between_chunks = False

    def on_chunk_complete(self) -> None:
        self.is_between_chunks = True

    def on_message_complete(self) -> None:
        self._is_complete = True

    def connection_lost(self, _error: Exception | None) -> None:
        self._is_lost = True
        self._pool.remove(self)
        self._wake()


class Pool:
    """The connections to one socket. As many as requests are under way at a time: an idle one is
    taken before another is made, the last one first.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._idle: dict[Upstream, None] = {}  # in order, and one is removed at no cost
        self._is_closed = False

    async def take(self) -> Upstream:
        """Raises OSError where tritonserver does not listen."""
        if self._idle:
            return self._idle.popitem()[0]
        loop = asyncio.get_running_loop()
        for pause_s in _PAUSES_S:
            with contextlib.suppress(BlockingIOError):  # too many come at once for its queue
                return (await loop.create_unix_connection(lambda: Upstream(self), self.path))[1]
            await asyncio.sleep(pause_s)
        raise BlockingIOError("tritonserver refuses connections")

    def give_back(self, upstream: Upstream) -> None:
        if self._is_closed:
            upstream.close()
        else:
            self._idle[upstream] = None

    def remove(self, upstream: Upstream) -> None:
        self._idle.pop(upstream, None)

    def close(self) -> None:
        """Closes idle connections, and the others after their answers: tritonserver waits for all
        before it ends.
        """
        self._is_closed = True
        for upstream in self._idle:
            upstream.close()
        self._idle.clear()


async def read_left(upstream: Upstream, abandoned: AbandonedRequests, name: str) -> None:
    """Reads the answer to a request that was left. Its end comes soon, for its model is told; the
    answer of one that has died never ends.
    """
    abandoned.tell(name)
    try:
        with contextlib.suppress(asyncio.TimeoutError, LostError):
            async with timeout(LEFT_S):
                while await upstream.read():
                    pass
    finally:
        abandoned.forget(name)
        upstream.release()
