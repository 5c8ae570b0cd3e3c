"""A public port of Triton's: its connections, who may ask, and how much is held for all of them.

Knows no protocol.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import ssl
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NamedTuple, Protocol

from hf_triton.ports import connections
from hf_triton.ports.callers import Callers
from hf_triton.ports.repeats import Repeats
from hf_triton.ports.settings import MIB, Access
from hf_triton.ports.time_limit import timeout
from hf_triton.tritonserver.listen import listening_socket, most_connections

_BACKLOG = 1024
_HANDSHAKE_S = 10.0
_SWEEP_EVERY_S = 1.0
_MAX_CONNECTIONS = 16_384
_SPARE_DESCRIPTORS = 64
# A client's connection and one to tritonserver on each of two HTTP ports, and on gRPC's the
# client's and both ends of the one to its server.
_DESCRIPTORS_EACH = 7
_BUFFERED_MIB = 512  # but two of the largest requests at least
SMALL_BYTES = 65_536  # of a request that there is always room for


class Connection(connections.Connection, Protocol):
    """A client's; its deadline is in seconds of ``now``."""

    def time_out(self, now: float) -> None:
        """Ends what takes too long to come."""

    def stop(self) -> None:
        """Closes once what is under way is answered."""


class Port:
    """What the connections share, and the ``callers`` with other ports. ``num_buffered`` are the
    bytes of all clients' requests that tritonserver does not have yet.
    """

    def __init__(
        self,
        access: Access,
        admin_key: str,
        repeats: Repeats | None = None,
        callers: Callers | None = None,
    ) -> None:
        self.access = access
        self.repeats = repeats or Repeats()
        self.callers = callers or Callers(access)
        self.is_stopping = False
        self.num_buffered = 0
        self.max_body_bytes = access.max_body_mib * MIB
        self.now: Callable[[], float] = time.monotonic
        self._admin_key = admin_key.encode()
        self._max_buffered = max(_BUFFERED_MIB, 2 * access.max_body_mib) * MIB
        most = most_connections(_MAX_CONNECTIONS, _SPARE_DESCRIPTORS, _DESCRIPTORS_EACH)
        self.connections = connections.Connections[Connection](most)
        self._tasks: set[asyncio.Task[None]] = set()

    def has_room(self, num_bytes: int, request_bytes: int) -> bool:
        """Whether ``num_bytes`` more may be held, of a request of which there are then so many."""
        is_full = self.num_buffered + num_bytes > self._max_buffered
        return request_bytes <= SMALL_BYTES or not is_full

    def may_keep(self, request_bytes: int) -> bool:
        """Whether a request that tritonserver has may be held still, to be sent again."""
        return request_bytes <= SMALL_BYTES or self.num_buffered <= self._max_buffered // 2

    def run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Runs it beside the others."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def sweep(self) -> None:
        """Ends what takes too long to come, on all connections."""
        now = self.now()
        for connection in self.connections:
            connection.time_out(now)

    def begin_stop(self) -> None:
        """Connections close after the answers that are under way."""
        self.is_stopping = True
        self.repeats.begin_stop()
        for connection in self.connections:
            connection.stop()


class Door(NamedTuple):
    """Where a port listens, and what makes a ``new`` protocol for each of its clients; ``flag`` is
    in errors.
    """

    port: Port
    new: Callable[[], asyncio.Protocol]
    number: int
    flag: str
    tls: ssl.SSLContext | None


async def serve(
    doors: Sequence[Door],
    host: str,
    stop: asyncio.Event,
    on_ready: Callable[[], None],
    grace_s: float = math.inf,
) -> None:
    """Serves until ``stop``; then accepts no client any more, and waits until what is under way has
    ended, ``grace_s`` at most. Raises ServerError where a port can't be listened on.
    """
    servers = [await _accept(door, host) for door in doors]
    ports = [door.port for door in doors]
    on_ready()
    while not stop.is_set():
        for port in ports:
            port.sweep()
        with contextlib.suppress(asyncio.TimeoutError):
            async with timeout(_SWEEP_EVERY_S):
                await stop.wait()
    for server in servers:
        server.close()
    for port in ports:
        port.begin_stop()
    ends_at_s = time.monotonic() + grace_s
    while any(port.connections for port in ports) and time.monotonic() < ends_at_s:
        for port in ports:
            port.sweep()
        await asyncio.sleep(0.05)


async def _accept(door: Door, host: str) -> asyncio.AbstractServer:
    return await asyncio.get_running_loop().create_server(
        door.new,
        sock=listening_socket(host, door.number, door.flag),
        backlog=_BACKLOG,
        ssl=door.tls,
        ssl_handshake_timeout=_HANDSHAKE_S if door.tls else None,
    )
