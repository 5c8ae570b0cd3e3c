"""One client's connection: its bytes go to the gRPC server of this process and back, over a Unix
socket. Knows no HTTP/2.

So the public socket is one that ``serve`` holds, which a gRPC server could not take over, with the
TLS and the number of connections of every other port.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator

from hf_triton.ports.port import Port

# For each call, beside its messages: an upper limit of what it holds.
CALL_BYTES = 4096
_PIECE_BYTES = 1 << 16


class ClientConnection:
    """The client's end; ``address`` is the client's. ``by_peer`` has all, by the names that they
    have at the server.
    """

    _writer: asyncio.StreamWriter

    def __init__(
        self, port: Port, server_socket: str, by_peer: dict[str, ClientConnection]
    ) -> None:
        self._port, self._server_socket, self._by_peer = port, server_socket, by_peer
        self.address = self._peer = ""
        self.deadline = port.now()
        self._num_calls = self._num_unread = 0

    def protocol(self) -> asyncio.Protocol:
        """A protocol of asyncio's that serves this client."""

        def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._port.run(self._serve(reader, writer))

        return asyncio.StreamReaderProtocol(asyncio.StreamReader(), serve)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writer, self.address = writer, (writer.get_extra_info("peername") or ("",))[0]
        self._port.connections.add(self)
        try:
            with contextlib.suppress(OSError):
                await self._relay(reader, writer)
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
        finally:
            self._port.connections.remove(self)
            self._by_peer.pop(self._peer, None)
            self.take_message(self._num_unread)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Passes bytes on until one end is closed. Raises OSError."""
        answers, server = await self._connect()
        receiving = asyncio.create_task(self._receive(reader, server))
        try:
            while data := await answers.read(_PIECE_BYTES):
                writer.write(data)
                await writer.drain()
        finally:
            receiving.cancel()
            server.transport.abort()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        connecting = socket.socket(socket.AF_UNIX)
        try:
            connecting.setblocking(False)
            connecting.bind("")  # the kernel gives it a name, by which its calls are known
            self._peer = f"unix-abstract:{connecting.getsockname()[1:].decode()}"
            self._by_peer[self._peer] = self
            await asyncio.get_running_loop().sock_connect(connecting, self._server_socket)
            return await asyncio.open_unix_connection(sock=connecting)
        except OSError:
            connecting.close()
            raise

    async def _receive(self, reader: asyncio.StreamReader, server: asyncio.StreamWriter) -> None:
        """Passes on what the client sends. Messages whose last bytes are missing take up memory."""
        bodies = self._port.bodies
        with contextlib.suppress(OSError):
            while data := await reader.read(_PIECE_BYTES):
                self._num_unread += len(data)
                bodies.num_bytes += len(data)
                if not bodies.has_room(0, self._num_unread):
                    self.abort()
                    break
                server.write(data)
                await server.drain()
        server.transport.abort()  # no client is left

    def take_message(self, num_bytes: int) -> None:
        num_read = min(self._num_unread, num_bytes + CALL_BYTES)
        self._num_unread -= num_read
        self._port.bodies.num_bytes -= num_read

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
        self._writer.transport.abort()

    def time_out(self, now: float) -> None:
        """Leaves it to the server to end slow calls."""

    def stop(self) -> None:
        """The server closes it once the last call is answered."""
