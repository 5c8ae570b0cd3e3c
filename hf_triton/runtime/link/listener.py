"""The engine's end of the link: receives requests from other processes and sends the answers back.
Whatever a caller sends, and whenever it disconnects, only its own requests are affected.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Mapping
from functools import partial

from .. import log
from ..errors import EngineError, OverloadedError
from ..request.request import Request
from ..request.responder import Array, attempt, status_and_text
from . import frames, protocol
from .frames import Connection, Frame, FrameTooLargeError, read_request
from .protocol import LinkError

_BACKLOG = 16
FLUSH_S = 2.0


class EngineListener:
    """Accepts connections of other processes, and hands each of their requests to ``handle``, on
    the reader thread of the caller's connection.
    """

    def __init__(self, model: str, handle: Callable[[Request], None]) -> None:
        """``model`` is the name of the engine's Triton model. Raises OSError if it can't listen."""
        self._handle = handle
        self._lock = threading.Lock()
        self.callers: set[_Caller] = set()
        self.is_draining = False
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(f"\0{protocol.new_address(model)}")
        self._socket.listen(_BACKLOG)
        self._acceptor = threading.Thread(target=self._accept, name="link acceptor", daemon=True)
        self._acceptor.start()

    def drain(self) -> None:
        """Takes no new requests from here on: callers send them to another engine."""
        self.stop_listening()
        with self._lock:  # a request that is being dispatched is dispatched before this returns
            self.is_draining = True
            callers = list(self.callers)
        for caller in callers:
            caller.send(frames.encode(Frame(frames.DRAIN)))

    def close(self) -> None:
        """Drains, sends the answers that are queued, and ends every thread."""
        self.drain()
        for caller in list(self.callers):
            caller.close(flush_s=FLUSH_S)

    def dispatch(self, request: Request) -> None:
        """Passes a request to the engine, unless the model is being unloaded."""
        with self._lock:
            if not self.is_draining:
                self._handle(request)
                return
        raise OverloadedError("the model is being unloaded: try again")

    def forget(self, caller: _Caller) -> None:
        with self._lock:
            self.callers.discard(caller)

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._socket.accept()
            except OSError:
                return  # draining
            try:
                protocol.check_peer(sock)
            except LinkError as error:
                log.warn(f"a connection to the engine was refused: {error}")
                sock.close()
                continue
            caller = _Caller(self, sock)
            with self._lock:
                self.callers.add(caller)
            caller.start()

    def stop_listening(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes accept
        if self._acceptor is not threading.current_thread():
            self._acceptor.join()
        self._socket.close()


class _Caller(Connection):
    def __init__(self, listener: EngineListener, sock: socket.socket) -> None:
        super().__init__(sock)
        self.listener = listener
        self.open: dict[int, _LinkResponder] = {}  # changed one key at a time, which is atomic

    def on_frame(self, frame: Frame) -> None:
        if frame.kind == frames.CANCEL:
            responder = self.open.get(frame.number)
            if responder is not None:
                responder.cancel()
        elif frame.kind == frames.REQUEST:
            request = read_request(frame, partial(_LinkResponder, self, frame.number))
            attempt(request.responder, self.listener.dispatch, request)
        else:
            raise LinkError("a frame of an unknown kind")

    def on_end(self, fault: LinkError | None) -> None:
        self.listener.forget(self)
        for responder in list(self.open.values()):
            responder.cancel()
        if fault is not None:
            log.warn(f"a caller's connection was ended: {fault}")


class _LinkResponder:
    def __init__(self, caller: _Caller, number: int, request_id: str) -> None:
        self.request_id = request_id
        self._caller, self._number = caller, number
        self._cancelled = False
        caller.open[number] = self

    def send(self, outputs: Mapping[str, Array], *, final: bool) -> None:
        if self._number not in self._caller.open:
            return
        flags = frames.FINAL if final else 0
        try:
            # Before it counts as answered: what can't be encoded is an error that is sent.
            data = frames.encode(Frame(frames.ANSWER, self._number, flags, tensors=outputs))
        except FrameTooLargeError as error:
            self.fail(EngineError(f"the answer has {error}"))
            return
        if not final or self._close_once():
            self._caller.send(data)  # a caller that has gone is no error

    def fail(self, error: Exception) -> None:
        if not self._close_once():
            return
        status, text = status_and_text(error)
        # Tells the client that another engine can answer the request: it is neither the request's
        # fault nor a full queue's.
        unloading = isinstance(error, OverloadedError) and self._caller.listener.is_draining
        flags = frames.UNLOADING if unloading else 0
        self._caller.send(frames.encode(Frame(frames.ERROR, self._number, flags, (status, text))))

    def is_cancelled(self) -> bool:
        return self._cancelled

    def cancel(self) -> None:
        self._cancelled = True
        self._close_once()

    def _close_once(self) -> bool:
        """Ends the request; True for the first call."""
        return self._caller.open.pop(self._number, None) is not None
