"""The open connections of the port: how many there may be, and how long one may do nothing.

Knows no paths and no bodies.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Any

from aiohttp import web

from hf_triton.tritonserver import listen

_MOST = 4096
# At each turn of the event loop; it takes some turns until one that is to make room is closed.
ACCEPTED_AT_ONCE = 8
_KEPT_DESCRIPTORS = 128  # for those, and everything else that this process opens
# As nginx: longer than the minute for which proxies in front keep theirs open.
_IDLE_S = 75.0
_LINGERING_S = 2.0
# Who takes nothing of an answer for so long is gone.
_UNREAD_MS = 60_000
# aiohttp would log broken request lines as they came; what our handlers fail at, they tell.
_SILENT = logging.getLogger("hf_triton.openai_api")
_SILENT.setLevel(logging.CRITICAL + 1)


def most_connections() -> int:
    """How many may be open at once, by the descriptors that this process may have."""
    return listen.most_connections(_MOST, _KEPT_DESCRIPTORS)


class Connections:
    """At most ``most`` open ones. One more, and the one is closed that has gone longest without a
    request that was received in whole; so slow senders keep nobody out.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting: dict[web.RequestHandler, None] = {}  # the longest first
        self._answered: set[web.RequestHandler] = set()

    def waits(self, connection: web.RequestHandler) -> None:
        """It has no request, or not all of one."""
        self.lost(connection)
        if connection.transport is not None:
            self._waiting[connection] = None
            if len(self._waiting) + len(self._answered) > self._most:
                longest = next(iter(self._waiting))
                del self._waiting[longest]
                longest.force_close()

    def is_answered(self, connection: web.RequestHandler) -> None:
        """Its request has been received in whole."""
        if connection in self._waiting:
            del self._waiting[connection]
            self._answered.add(connection)

    def lost(self, connection: web.RequestHandler) -> None:
        """It is no longer open."""
        self._waiting.pop(connection, None)
        self._answered.discard(connection)


class _Connection(web.RequestHandler):
    """One that is counted. Headers that don't come in time end it as idleness does, and nothing
    is decompressed: a body can be a thousand times as large as what was sent.
    """

    __slots__ = ("_connections",)

    def __init__(self, server: web.Server, connections: Connections) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            access_log=None,  # type: ignore[arg-type]
            logger=_SILENT,
            keepalive_timeout=_IDLE_S,
            lingering_time=_LINGERING_S,
            auto_decompress=False,
        )
        self._connections = connections

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        connected = transport.get_extra_info("socket")
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNREAD_MS)
        self._connections.waits(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._connections.lost(self)
        super().connection_lost(exc)


def protocol(server: Any, connections: Connections) -> Callable[[], web.RequestHandler]:
    """What an event loop makes for each connection to ``server``."""
    return lambda: _Connection(server, connections)
