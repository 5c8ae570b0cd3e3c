"""The client end of one connection: the requests that one engine has to answer."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from typing import BinaryIO

from ..errors import CancelledError, OverloadedError, RuntimeModelError
from . import frames, protocol
from .connection import Connection
from .frames import Frame
from .pending_request import EngineAnswerError, PendingRequest
from .protocol import LinkError

_CONNECT_TIMEOUT_S = 2.0
_STATUSES = frozenset(
    ("INVALID_ARG", "NOT_FOUND", "UNSUPPORTED", "UNAVAILABLE", "INTERNAL", "CANCELLED")
)

Retry = Callable[[PendingRequest, RuntimeModelError], None]


class EngineClient:
    """A connection to one engine. Every request sent there is answered or returned for a retry,
    whatever happens to the engine.
    """

    def __init__(
        self,
        engine: str,
        address: str,
        on_drain: Callable[[], None],
        on_gone: Callable[[EngineClient, LinkError | None], None],
    ) -> None:
        """Connects within ``_CONNECT_TIMEOUT_S``. ``on_drain`` is called when the engine takes no
        more requests, ``on_gone`` when the connection has ended.

        Raises:
            LinkError: the peer is of another user, or of another version of the protocol.
            OSError: it does not listen, or does not answer.
        """
        self.address = address
        self.pending: dict[int, PendingRequest] = {}  # changed one key at a time, which is atomic
        self.is_usable = True
        self._is_draining = False
        self._on_drain, self._on_gone = on_drain, on_gone
        self._retry: Retry = PendingRequest.on_engine_lost
        self._gone_text = f"the engine {engine} went away before it answered: try again"
        sock, stream = _connected(address)
        self._connection = Connection(sock, self._on_frame, self._on_end, stream=stream)

    def start(self, retry: Retry) -> None:
        """Starts to read; ``retry`` gets each request that the engine returned because it is
        unloading.
        """
        self._retry = retry
        self._connection.start()

    def send(self, pending: PendingRequest) -> bool:
        """Sends a request; False if the engine has disconnected and the caller must send it
        elsewhere.
        """
        self.pending[pending.number] = pending
        if self._connection.send(pending.data):
            return True
        return self.pending.pop(pending.number, None) is None

    def cancel(self, pending: PendingRequest) -> None:
        """Tells the engine to stop computing a request, and answers it as cancelled."""
        if self.pending.pop(pending.number, None) is not None:
            self._connection.send(frames.encode(Frame(frames.CANCEL, pending.number)))
            pending.fail(CancelledError("the request was cancelled"))

    def close(self) -> None:
        """Disconnects; pending requests are answered with UNAVAILABLE, or returned for a retry."""
        self._gone_text = "the model is being unloaded: try again"
        self._retry = PendingRequest.on_engine_lost
        self._connection.close()

    def _on_frame(self, frame: Frame) -> None:
        if frame.kind == frames.DRAIN:
            self.is_usable, self._is_draining = False, True
            self._on_drain()
        elif frame.kind == frames.ANSWER:
            self._answer(frame, final=bool(frame.flags & frames.FINAL))
        elif frame.kind == frames.ERROR and len(frame.texts) == 2:
            pending = self.pending.pop(frame.number, None)
            if pending is not None:  # else it was cancelled
                self._fail(pending, frame)
        else:
            raise LinkError("a frame of no known kind")

    def _answer(self, frame: Frame, *, final: bool) -> None:
        number = frame.number
        pending = self.pending.pop(number, None) if final else self.pending.get(number)
        if pending is not None:  # else it was cancelled
            pending.answer(frame.tensors, final=final)

    def _fail(self, pending: PendingRequest, frame: Frame) -> None:
        status, text = frame.texts
        error = EngineAnswerError(status if status in _STATUSES else "INTERNAL", text)
        if frame.flags & frames.UNLOADING and not pending.has_begun:
            self.is_usable = False
            self._retry(pending, error)
        else:
            pending.fail(error)

    def _on_end(self, fault: LinkError | None) -> None:
        self.is_usable = False
        self._on_gone(self, fault)
        for number in list(self.pending):
            pending = self.pending.pop(number, None)
            if pending is None:
                continue
            if self._is_draining and not pending.has_begun:
                # It answers all it has read before it disconnects: this request came too late.
                self._retry(pending, OverloadedError(self._gone_text))
            else:
                pending.on_engine_lost(OverloadedError(self._gone_text))


def _connected(address: str) -> tuple[socket.socket, BinaryIO]:
    """A socket on which both hellos were exchanged, and its reading end."""
    with contextlib.ExitStack() as stack:
        sock = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        stream = stack.enter_context(sock.makefile("rb"))
        sock.settimeout(_CONNECT_TIMEOUT_S)
        sock.connect(f"\0{address}")
        protocol.check_peer(sock)
        sock.sendall(protocol.hello(), socket.MSG_NOSIGNAL)
        if not protocol.read_hello(stream):
            raise ConnectionResetError("it hung up")
        sock.settimeout(None)
        stack.pop_all()
    return sock, stream
