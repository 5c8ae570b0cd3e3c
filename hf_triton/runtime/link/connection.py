"""One connection between an engine and a client: a thread that reads and a thread that writes, so
that ``send`` never waits for the peer.

Takes frames as bytes and hands them over as objects; knows nothing of what they mean.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable

from . import frames
from .frames import Frame
from .protocol import LinkError

# Far above what an engine admits at once; a peer that has stopped reading gets no more.
_MAX_QUEUED_BYTES = 2 * frames.MAX_FRAME_BYTES


class Connection:
    """Our end of a connected socket, whose peer has been checked.

    The reader's thread calls ``on_frame`` for every frame, and ``on_end`` once when the connection
    has ended: with a LinkError if the peer broke the protocol, else None.
    """

    def __init__(
        self,
        sock: socket.socket,
        on_frame: Callable[[Frame], None],
        on_end: Callable[[LinkError | None], None],
    ) -> None:
        self._socket = sock
        self._on_frame, self._on_end = on_frame, on_end
        self._changed = threading.Condition()
        self._queue: list[bytes] = []
        self._queued_bytes = 0
        self._closing = False
        self._broken = False
        self._reader = threading.Thread(target=self._read, name="link reader", daemon=True)
        self._writer = threading.Thread(target=self._write, name="link writer", daemon=True)

    def start(self) -> None:
        self._writer.start()  # first: a reader that ends at once joins the writer
        self._reader.start()

    def send(self, data: bytes) -> bool:
        """Queues an encoded frame; False if the peer has gone or does not read."""
        with self._changed:
            full = self._queued_bytes and self._queued_bytes + len(data) > _MAX_QUEUED_BYTES
            if self._closing or self._broken or full:
                if full:
                    self._hang_up()
                return False
            self._queue.append(data)
            self._queued_bytes += len(data)
            self._changed.notify()
        return True

    def close(self, flush_s: float = 0.0) -> None:
        """Sends queued frames for at most ``flush_s``, disconnects, and ends both threads."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if flush_s:
            self._writer.join(flush_s)
        self._hang_up()
        for thread in (self._writer, self._reader):
            if thread is not threading.current_thread():
                thread.join()

    def _hang_up(self) -> None:
        """Disconnects and wakes both threads; the reader closes the socket."""
        self._broken = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _read(self) -> None:
        fault: LinkError | None = None
        try:
            with self._socket.makefile("rb") as stream:
                while (frame := frames.read_frame(stream)) is not None:
                    self._on_frame(frame)
        except LinkError as error:
            fault = error
        except OSError:
            pass  # the peer has gone
        finally:
            self._end(fault)

    def _end(self, fault: LinkError | None) -> None:
        with self._changed:
            self._hang_up()
            self._changed.notify()
        self._on_end(fault)
        if self._writer is not threading.current_thread():
            self._writer.join()
        self._socket.close()

    def _write(self) -> None:
        try:
            while data := self._next_data():
                self._socket.sendall(data, socket.MSG_NOSIGNAL)
        except OSError:
            pass  # the reader notices too
        with self._changed:
            self._queue, self._queued_bytes = [], 0
            if not self._closing:
                self._hang_up()

    def _next_data(self) -> bytes:
        """Waits for queued frames and returns them joined; empty when the connection ends."""
        with self._changed:
            while not (self._queue or self._closing or self._broken):
                self._changed.wait()
            if self._broken:
                return b""
            queue, self._queue, self._queued_bytes = self._queue, [], 0
        return b"".join(queue)
