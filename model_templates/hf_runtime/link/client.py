"""The client end of one connection: the requests that one engine has to answer."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from typing import BinaryIO

from ..errors import CancelledError
from . import protocol
from .connection import Connection
from .pending_request import EngineAnswerError, PendingRequest, UnavailableError
from .protocol import Array, Frame, LinkError

_CONNECT_TIMEOUT_S = 2.0
_STATUSES = frozenset(
    ("INVALID_ARG", "NOT_FOUND", "UNSUPPORTED", "UNAVAILABLE", "INTERNAL", "CANCELLED")
)

Retry = Callable[[PendingRequest, EngineAnswerError], None]


class EngineClient:
    """A connection to one engine. Every request sent there is answered or given back, whatever
    happens to the engine.
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
        self._engine = engine
        self._on_drain, self._on_gone = on_drain, on_gone
        self._retry: Retry = PendingRequest.on_engine_lost
        self._gone_text = f"the engine {engine} went away before it answered: try again"
        sock, stream = _connected(address)
        self._connection = Connection(sock, self._on_frame, self._on_end, stream=stream)

    def start(self, retry: Retry) -> None:
        """Starts to read; ``retry`` gets each request that the engine gave back because it is being
        unloaded.
        """
        self._retry = retry
        self._connection.start()

    def send(self, pending: PendingRequest) -> bool:
        """Sends a request; False if the engine has gone and the caller must send it elsewhere."""
        self.pending[pending.number] = pending
        if self._connection.send(pending.data):
            return True
        return self.pending.pop(pending.number, None) is None

    def cancel(self, pending: PendingRequest) -> None:
        """Tells the engine to stop computing a request, and answers it as cancelled."""
        if self.pending.pop(pending.number, None) is not None:
            self._connection.send(protocol.encode({"kind": "cancel", "id": pending.number}))
            pending.fail(CancelledError("the request was cancelled"))

    def close(self) -> None:
        """Disconnects; pending requests are answered with UNAVAILABLE, or given back."""
        self._gone_text = "the model is being unloaded: try again"
        self._connection.close()

    def _on_frame(self, frame: Frame) -> None:
        kind, number = frame.get("kind"), frame.get("id")
        if kind == "drain":
            self.is_usable = False
            self._on_drain()
        elif kind == "answer" and isinstance(number, int):
            self._answer(number, _outputs(frame), final=bool(frame.get("final")))
        elif kind == "error" and isinstance(number, int):
            pending = self.pending.pop(number, None)
            if pending is not None:  # else it was cancelled
                self._fail(pending, frame)
        else:
            raise LinkError("a frame of no known kind")

    def _answer(self, number: int, outputs: dict[str, Array], *, final: bool) -> None:
        pending = self.pending.pop(number, None) if final else self.pending.get(number)
        if pending is not None:  # else it was cancelled
            pending.answer(outputs, final=final)

    def _fail(self, pending: PendingRequest, frame: Frame) -> None:
        status, text = frame.get("status"), str(frame.get("text"))
        error = EngineAnswerError(status if status in _STATUSES else "INTERNAL", text)
        if frame.get("unloading") and not pending.has_begun:
            self.is_usable = False
            self._retry(pending, error)
        else:
            pending.fail(error)

    def _on_end(self, fault: LinkError | None) -> None:
        self.is_usable = False
        self._on_gone(self, fault)
        for number in list(self.pending):
            pending = self.pending.pop(number, None)
            if pending is not None:
                pending.on_engine_lost(UnavailableError(self._gone_text))


def _connected(address: str) -> tuple[socket.socket, BinaryIO]:
    """A socket on which both hellos were exchanged, and its reading end."""
    with contextlib.ExitStack() as stack:
        sock = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        stream = stack.enter_context(sock.makefile("rb"))
        sock.settimeout(_CONNECT_TIMEOUT_S)
        sock.connect(f"\0{address}")
        protocol.check_peer(sock)
        sock.sendall(protocol.encode(protocol.hello()), socket.MSG_NOSIGNAL)
        first = protocol.read_frame(stream)
        if first is None:
            raise ConnectionResetError("it hung up")
        protocol.check_hello(first)
        sock.settimeout(None)
        stack.pop_all()
    return sock, stream


def _outputs(frame: Frame) -> dict[str, Array]:
    packed = frame.get("outputs")
    if not isinstance(packed, dict):
        raise LinkError("an answer lacks its outputs")
    return {name: protocol.unpack_tensor(tensor) for name, tensor in packed.items()}
