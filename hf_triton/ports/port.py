"""A public port: its connections, and what it has together with the other ports of its process.

Says how long a client may take, and how ports stop. Knows no protocol.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from hf_triton.ports import connections
from hf_triton.ports.bodies import Bodies
from hf_triton.ports.callers import Callers
from hf_triton.ports.repeats import Repeats
from hf_triton.ports.settings import EVERYBODY, Access
from hf_triton.ports.time_limit import timeout
from hf_triton.tritonserver.listen import listening_socket, most_connections

# How long a client may take: for a head, between two pieces of a body, for a whole body, until its
# next request, until it has read what was written, and to read a last answer.
HEAD_S, PIECE_S, BODY_S, IDLE_S, UNREAD_S, LINGER_S = 10.0, 30.0, 600.0, 300.0, 120.0, 5.0
GRACE_S = 60.0  # as long as Triton itself waits for what is in flight
_BACKLOG = 1024
_HANDSHAKE_S = 10.0
_SWEEP_EVERY_S = 1.0
_LATE_CONNECTIONS_S = 0.1
_MAX_CONNECTIONS = 16_384
_SPARE_DESCRIPTORS = 64
# A client's connection and one to tritonserver on each of two HTTP ports, on gRPC's the client's
# and both ends of the one to its server, and on OpenAI's the client's.
_DESCRIPTORS_EACH = 8


class Connection(connections.Connection, Protocol):
    """A client's; its deadline is in seconds of ``now``."""

    def time_out(self, now: float) -> None:
        """Ends what takes too long to come."""

    def stop(self) -> None:
        """Closes once what is under way is answered."""


@dataclass(frozen=True)
class Shared:
    """What the ports of a process have together, so that it counts once."""

    access: Access
    callers: Callers
    repeats: Repeats
    bodies: Bodies
    admin_key: str = ""


def shared(
    access: Access = EVERYBODY, admin_key: str = "", repeats: Repeats | None = None
) -> Shared:
    """That of a process in which nothing has been counted."""
    callers, bodies = Callers(access), Bodies(access.max_body_mib)
    return Shared(access, callers, repeats or Repeats(), bodies, admin_key)


class Port:
    """What the connections of a port share."""

    def __init__(self, shared: Shared) -> None:
        self.access, self.callers = shared.access, shared.callers
        self.repeats, self.bodies = shared.repeats, shared.bodies
        self.is_stopping = False
        self.now: Callable[[], float] = time.monotonic
        self._admin_key = shared.admin_key.encode()
        most = most_connections(_MAX_CONNECTIONS, _SPARE_DESCRIPTORS, _DESCRIPTORS_EACH)
        self.connections = connections.Connections[Connection](most)
        self._tasks: set[asyncio.Task[None]] = set()

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
    doors: Sequence[Door], host: str, stop: asyncio.Event, on_ready: Callable[[], None]
) -> None:
    """Serves until ``stop``; then accepts no client any more, and waits until what is under way has
    ended, GRACE_S at most. Raises ServerError where a port can't be listened on.
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
    await asyncio.sleep(_LATE_CONNECTIONS_S)  # those that were accepted just now have asked then
    for port in ports:
        port.begin_stop()
    ends_at_s = time.monotonic() + GRACE_S
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
