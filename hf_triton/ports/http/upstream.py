"""Connections to tritonserver's Unix socket, kept for the next request."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import httptools

from hf_triton.ports.call_files import LEFT_S, AbandonedRequests

_PAUSES_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)


class Asker:
    """A recipient of an answer, piece by piece."""

    def end_request(self) -> None:
        """All of the request has been sent."""

    def take_answer(self, data: bytes) -> None:
        """The next bytes of the answer, head and body alike."""

    def end_answer(self, upstream: Upstream) -> None:
        """The answer is complete."""

    def lose_answer(self, upstream: Upstream) -> None:
        """The connection was closed before."""


class Upstream(asyncio.Protocol):
    """One connection, with at most one request on it. ``status`` is the answer's, 0 before it is
    known, ``keeps_alive`` whether the connection goes on after it, ``is_between_chunks`` whether
    another chunk may follow what has come, and ``is_sent`` whether Triton has all of the request.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._transport: Any = None
        self._asker: Asker | None = None
        self._is_complete = self.keeps_alive = self.is_between_chunks = False
        self.is_sent = True
        self.status = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def ask(self, asker: Asker, request: bytes) -> None:
        """Sends a whole request; the answer goes to ``asker``."""
        self._asker = asker
        self._is_complete = self.is_between_chunks = False
        self.status = 0
        self._parser = httptools.HttpResponseParser(self)
        self._transport.write(request)
        if self.is_sent:
            asker.end_request()

    def pause_writing(self) -> None:
        self.is_sent = False

    def resume_writing(self) -> None:
        self.is_sent = True
        if self._asker:
            self._asker.end_request()

    def forget(self) -> None:
        """Drops the answer: Triton sees the connection closed, and cancels."""
        self._asker = None
        self._transport.abort()

    def pass_to(self, asker: Asker) -> None:
        """The rest of the answer goes to another one."""
        self._asker = asker
        self._transport.resume_reading()

    def pause(self) -> None:
        self._transport.pause_reading()

    def resume(self) -> None:
        self._transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        asker = self._asker
        if asker is None:  # nothing was asked
            self._pool.remove(self)
            self._transport.abort()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.abort()
            return
        asker.take_answer(data)
        if self._is_complete and self._asker:  # who has not taken it for lost
            self._asker = None
            if self.keeps_alive and self.is_sent:
                self._transport.resume_reading()  # for the next one, who may read faster
                self._pool.give_back(self)
            else:
                self._transport.abort()
            asker.end_answer(self)

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
        self._pool.remove(self)
        asker, self._asker = self._asker, None
        if asker:
            asker.lose_answer(self)

    def close(self) -> None:
        self._transport.close()


class Pool:
    """The connections to one socket. As many as requests are under way at a time: an idle one is
    taken before another is made, the last one first.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._idle: dict[Upstream, None] = {}  # in order, and one is removed at no cost
        self._is_closed = False

    def take(self) -> Upstream | None:
        return self._idle.popitem()[0] if self._idle else None

    async def connect(self) -> Upstream:
        """A new one. Raises OSError where tritonserver does not listen."""
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


class LeftAnswer(Asker):
    """The answer to a request that was left: nobody wants it, but it is read to its end, which
    comes soon, for its model is told. One whose model has died never ends.
    """

    def __init__(self, upstream: Upstream, abandoned: AbandonedRequests, name: str) -> None:
        self._abandoned, self._name = abandoned, name
        abandoned.tell(name)
        self._timer = asyncio.get_running_loop().call_later(LEFT_S, self._give_up, upstream)
        upstream.pass_to(self)

    def _give_up(self, upstream: Upstream) -> None:
        self._abandoned.forget(self._name)
        upstream.forget()

    def end_answer(self, _upstream: Upstream) -> None:
        self._timer.cancel()
        self._abandoned.forget(self._name)

    def lose_answer(self, upstream: Upstream) -> None:
        self.end_answer(upstream)
