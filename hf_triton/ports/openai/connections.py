"""The open connections of the port: how many there may be, and how long one may do nothing.

Knows no paths and no bodies.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable
from typing import Any

from aiohttp import web

from hf_triton.ports.connections import Connections
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


class _Connection(web.RequestHandler):
    """One that is counted. Headers that don't come in time end it as idleness does, and nothing
    is decompressed: a body can be a thousand times as large as what was sent.
    """

    __slots__ = ("_connections", "deadline", "is_idle")

    def __init__(self, server: web.Server, connections: Connections[_Connection]) -> None:
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
        self.set_idle(True)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        connected = transport.get_extra_info("socket")
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNREAD_MS)
        self._connections.add(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._connections.remove(self)
        super().connection_lost(exc)

    def set_idle(self, is_idle: bool) -> None:
        self.is_idle, self.deadline = is_idle, time.monotonic() + _IDLE_S

    def abort(self) -> None:
        self.force_close()


def set_idle(request: web.Request, is_idle: bool) -> None:
    """Whether its connection waits for a request, or for the rest of one."""
    if isinstance(request.protocol, _Connection):
        request.protocol.set_idle(is_idle)


def protocol(server: Any, most: int) -> Callable[[], web.RequestHandler]:
    """What an event loop makes for each connection to ``server``, of ``most`` at once."""
    connections = Connections[_Connection](most)
    return lambda: _Connection(server, connections)
