"""A client's connection to OpenAI's port: how long it may do nothing. Knows no paths."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from typing import cast

from aiohttp import web

from hf_triton.ports.port import BODY_S, HEAD_S, IDLE_S, LINGER_S, PIECE_S, UNREAD_S, Port

# aiohttp would log broken request lines as they came; what our handlers fail at, they tell.
_SILENT = logging.getLogger("hf_triton.openai_api")
_SILENT.setLevel(logging.CRITICAL + 1)


class Connection(web.RequestHandler):
    """From its start to its end. Nothing is decompressed: a body can be a thousand times as large
    as what was sent.
    """

    __slots__ = ("_is_between", "_port", "deadline", "is_idle")

    def __init__(self, server: web.Server | None, port: Port) -> None:
        super().__init__(
            cast(web.Server, server),
            loop=asyncio.get_running_loop(),
            access_log=None,  # type: ignore[arg-type]
            logger=_SILENT,
            keepalive_timeout=IDLE_S,
            lingering_time=LINGER_S,
            auto_decompress=False,
        )
        self._port = port
        self._is_between = False  # requests
        self.is_idle, self.deadline = True, port.now() + HEAD_S

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has come."""
        super().connection_made(transport)
        self._port.connections.add(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        """It has gone."""
        self._port.connections.remove(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """It sends."""
        if self._is_between and data:
            self._is_between, self.deadline = False, self._port.now() + HEAD_S
        super().data_received(data)

    def pause_writing(self) -> None:
        """It reads slower than it is answered."""
        super().pause_writing()
        self.deadline = self._port.now() + UNREAD_S

    def resume_writing(self) -> None:
        """It has caught up."""
        super().resume_writing()
        self.deadline = self._port.now() + IDLE_S if self._is_between else math.inf

    def begin(self, *, has_body: bool) -> None:
        """The head of a request is there."""
        self._is_between, self.is_idle = False, has_body
        self.deadline = self._port.now() + BODY_S + PIECE_S if has_body else math.inf

    def compute(self) -> None:
        """All of a request is there."""
        self.is_idle, self.deadline = False, math.inf

    def end(self) -> None:
        """A request is answered, but perhaps not all has been read."""
        self._is_between = self.is_idle = True
        self.deadline = self._port.now() + IDLE_S

    # Of the port.

    def time_out(self, now: float) -> None:
        """Ends what its deadline has passed for."""
        if now > self.deadline:
            self.abort()

    def stop(self) -> None:
        """Closes once what is under way is answered."""
        if self._request_in_progress or self._messages:
            self.close()
        else:
            self.force_close()

    def abort(self) -> None:
        """Closes at once."""
        transport = self.transport
        self.force_close()
        if transport:
            transport.abort()


def connection_of(request: web.Request) -> Connection:
    """That over which it came."""
    return cast(Connection, request.protocol)


@web.middleware
async def followed(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Tells its connection how far a request has got."""
    connection = connection_of(request)
    connection.begin(has_body=request.can_read_body)
    try:
        return await handler(request)
    finally:
        connection.end()
