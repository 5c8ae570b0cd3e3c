"""The client end of one connection: the requests that one engine has to answer."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Mapping

from .. import log
from ..errors import CancelledError, OverloadedError, RuntimeModelError, place
from ..request.request_ids import labelled
from ..request.responder import Responder
from . import frames, protocol
from .connection import Connection
from .frames import Array, Frame
from .protocol import LinkError

_STATUSES = frozenset(
    ("INVALID_ARG", "NOT_FOUND", "UNSUPPORTED", "UNAVAILABLE", "INTERNAL", "CANCELLED")
)


class EngineAnswerError(RuntimeModelError):
    """The error that the engine answered with, with the engine's Triton status."""

    def __init__(self, status: str, text: str) -> None:
        super().__init__(text)
        self.status = status


class PendingRequest:
    """A forwarded request until an engine has answered it: the first to do so, if it is sent again.

    ``data`` is its frame, ``requested_outputs`` are those that it lists. ``on_lost`` is called
    instead of sending an error if the engine is lost before it has answered.
    """

    def __init__(
        self,
        number: int,
        data: bytes,
        requested_outputs: Iterable[str],
        responder: Responder,
        on_lost: Callable[[RuntimeModelError], None] | None,
    ) -> None:
        self.number, self.data = number, data
        self.has_begun = False
        self.fail, self.is_cancelled = responder.fail, responder.is_cancelled
        self._requested_outputs = frozenset(requested_outputs)
        self._responder = responder
        self._on_lost = on_lost or responder.fail

    def answer(self, outputs: Mapping[str, Array], *, final: bool) -> None:
        """Sends the requested outputs only: any other could kill the stub (Triton drops it without
        holding Python's GIL).
        """
        self.has_begun = True
        try:
            wanted = {
                name: array for name, array in outputs.items() if name in self._requested_outputs
            }
            self._responder.send(wanted, final=final)
        except Exception as error:
            text = f"an answer was not sent: {place(error)}"
            log.error(labelled(self._responder.request_id, text))
            self.fail(error)

    def on_engine_lost(self, error: RuntimeModelError) -> None:
        """Sends an error if an answer has begun, else calls ``on_lost``."""
        (self.fail if self.has_begun else self._on_lost)(error)


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
        """Connects. ``on_drain`` is called when the engine takes no more requests, ``on_gone`` when
        the connection has ended.

        Raises:
            LinkError: the peer is another user's process.
            OSError: it does not listen.
        """
        self.address = address
        self.pending: dict[int, PendingRequest] = {}  # changed one key at a time, which is atomic
        self.is_usable = True
        self._is_draining = False
        self._on_drain, self._on_gone = on_drain, on_gone
        self._retry: Retry = PendingRequest.on_engine_lost
        self._gone_text = f"the engine {engine} went away before it answered: try again"
        self._connection = Connection(_connected(address), self._on_frame, self._on_end)

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
            # A draining engine answers all it has read before it disconnects: this came too late.
            may_retry = self._is_draining and not pending.has_begun
            end = self._retry if may_retry else PendingRequest.on_engine_lost
            end(pending, OverloadedError(self._gone_text))


def _connected(address: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)  # a full queue of connections is an error, not a wait
        sock.connect(f"\0{address}")
        sock.setblocking(True)
        protocol.check_peer(sock)
    except BaseException:
        sock.close()
        raise
    return sock
