"""The asking end of one connection: the requests that one engine has to answer."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from typing import BinaryIO

from ..errors import CancelledError
from . import protocol
from .connection import Connection
from .protocol import Array, Frame, LinkError
from .waiting import EngineAnswerError, UnavailableError, Waiting

_CONNECT_TIMEOUT_S = 2.0
_STATUSES = frozenset(
    ("INVALID_ARG", "NOT_FOUND", "UNSUPPORTED", "UNAVAILABLE", "INTERNAL", "CANCELLED")
)

Retry = Callable[[Waiting, EngineAnswerError], None]


class EngineClient:
    """One engine, connected to. Every request that it takes is answered, whatever happens to it."""

    def __init__(
        self,
        engine: str,
        address: str,
        on_drain: Callable[[], None],
        on_gone: Callable[[EngineClient, LinkError | None], None],
    ) -> None:
        """Connects within ``_CONNECT_TIMEOUT_S``. ``on_drain`` is told that the engine takes no
        more requests, ``on_gone`` that nothing more comes from it.

        Raises:
            LinkError: the peer is not one to talk to.
            OSError: it does not listen, or does not answer.
        """
        self.address = address
        self.waiting: dict[int, Waiting] = {}  # changed one key at a time, which is atomic
        self.is_usable = True
        self._engine = engine
        self._on_drain, self._on_gone = on_drain, on_gone
        self._retry: Retry = Waiting.lose
        self._gone_text = f"the engine {engine} went away before it answered: try again"
        sock, stream = _connected(address)
        self._connection = Connection(sock, self._on_frame, self._on_end, stream=stream)

    def start(self, retry: Retry) -> None:
        """Starts to read; ``retry`` gets what the engine gave back because it is being unloaded."""
        self._retry = retry
        self._connection.start()

    def send(self, waiting: Waiting) -> bool:
        """Passes a request on; False where the engine has gone and the request is still ours."""
        self.waiting[waiting.number] = waiting
        if self._connection.send(waiting.data):
            return True
        return self.waiting.pop(waiting.number, None) is None

    def cancel(self, waiting: Waiting) -> None:
        """Tells the engine that nobody waits any more, and answers the request."""
        if self.waiting.pop(waiting.number, None) is not None:
            self._connection.send(protocol.encode({"kind": "cancel", "id": waiting.number}))
            waiting.fail(CancelledError("the request was cancelled"))

    def close(self) -> None:
        """Hangs up; what waits is answered with UNAVAILABLE."""
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
            waiting = self.waiting.pop(number, None)
            if waiting is not None:  # else it was cancelled
                self._fail(waiting, frame)
        else:
            raise LinkError("a frame of no known kind")

    def _answer(self, number: int, outputs: dict[str, Array], *, final: bool) -> None:
        waiting = self.waiting.pop(number, None) if final else self.waiting.get(number)
        if waiting is not None:  # else it was cancelled
            waiting.answer(outputs, final=final)

    def _fail(self, waiting: Waiting, frame: Frame) -> None:
        status, text = frame.get("status"), str(frame.get("text"))
        error = EngineAnswerError(status if status in _STATUSES else "INTERNAL", text)
        if frame.get("unloading") and not waiting.has_begun:
            self.is_usable = False
            self._retry(waiting, error)
        else:
            waiting.fail(error)

    def _on_end(self, fault: LinkError | None) -> None:
        self.is_usable = False
        self._on_gone(self, fault)
        for number in list(self.waiting):
            waiting = self.waiting.pop(number, None)
            if waiting is not None:
                waiting.lose(UnavailableError(self._gone_text))


def _connected(address: str) -> tuple[socket.socket, BinaryIO]:
    """A socket behind its hellos, and its reading end."""
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
