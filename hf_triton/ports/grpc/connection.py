"""One client's connection: its bytes go to the gRPC server of this process and back, over a Unix
socket. Knows no HTTP/2.

So the public socket is one that ``serve`` holds, which a gRPC server could not take over, with the
TLS and the number of connections of every other port.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
from collections.abc import Callable, Iterator
from typing import Any

from hf_triton.ports.port import Port

# For each call, of what comes beside its messages: more than there is, so that nothing adds up.
CALL_BYTES = 4096


class _End(asyncio.Protocol):
    """Sends what comes at this end out at the ``other``; ``early`` came before that was there."""

    other: _End

    def __init__(self, on_closed: Callable[[], None]) -> None:
        """``on_closed`` is called once both ends are closed."""
        self._on_closed, self.is_closed = on_closed, False
        self.transport: Any = None
        self.early = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        if self.other.early:
            self.transport.write(self.other.early)

    def data_received(self, data: bytes) -> None:
        if self.other.transport is None:
            self.early += data
        elif not self.other.transport.is_closing():
            self.other.transport.write(data)

    def pause_writing(self) -> None:
        self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        self.other.transport.resume_reading()

    def close(self) -> None:
        """Once what was written has been read."""
        self.transport.close()

    def connection_lost(self, _error: Exception | None) -> None:
        self.is_closed = True
        if self.other.transport and not self.other.is_closed:
            self.other.close()
        else:
            self._on_closed()


class _ServerEnd(_End):
    def close(self) -> None:
        """At once: nobody waits for an answer."""
        self.transport.abort()


class ClientConnection(_End):
    """The client's end; ``address`` is the client's. ``by_peer`` has all, by the names that they
    have at the server.
    """

    def __init__(
        self, port: Port, server_socket: str, by_peer: dict[str, ClientConnection]
    ) -> None:
        super().__init__(self._remove)
        self._port, self._server_socket, self._by_peer = port, server_socket, by_peer
        self.other = _ServerEnd(self._remove)
        self.other.other = self
        self.address = self._peer = ""
        self.deadline = math.inf
        self._num_calls = self._num_unread = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Reads no bytes before the server is reached."""
        super().connection_made(transport)
        self.address = (transport.get_extra_info("peername") or ("",))[0]
        self.transport.pause_reading()
        self.deadline = self._port.now()
        self._port.connections.add(self)
        self._port.run(self._connect())

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        connecting = socket.socket(socket.AF_UNIX)
        connecting.setblocking(False)
        try:
            connecting.bind("")  # the kernel finds a name, by which calls tell whose they are
            self._peer = f"unix-abstract:{connecting.getsockname()[1:].decode()}"
            self._by_peer[self._peer] = self
            await loop.sock_connect(connecting, self._server_socket)
            await loop.create_unix_connection(lambda: self.other, sock=connecting)
        except OSError:
            connecting.close()
            self.transport.abort()
        if self.transport.is_closing():
            self.connection_lost(None)
        else:
            self.transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        """Messages of which the last bytes are missing take up memory."""
        self._num_unread += len(data)
        self._port.bodies.num_bytes += len(data)
        if self._port.bodies.has_room(0, self._num_unread):
            super().data_received(data)
        else:
            self.abort()

    def take_message(self, num_bytes: int) -> None:
        num_read = min(self._num_unread, num_bytes + CALL_BYTES)
        self._num_unread -= num_read
        self._port.bodies.num_bytes -= num_read

    def _remove(self) -> None:
        self._port.connections.remove(self)
        self._by_peer.pop(self._peer, None)
        self.take_message(self._num_unread)

    @contextlib.contextmanager
    def busy(self) -> Iterator[None]:
        """A call is under way while the block runs."""
        self._num_calls += 1
        try:
            yield
        finally:
            self._num_calls -= 1
            self.deadline = self._port.now()

    @property
    def is_idle(self) -> bool:
        return not self._num_calls

    def abort(self) -> None:
        self.transport.abort()

    def time_out(self, now: float) -> None:
        """Leaves it to the server to end slow calls."""

    def stop(self) -> None:
        """The server closes it once the last call is answered."""
