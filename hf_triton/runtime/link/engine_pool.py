"""The engines of one Triton model, as other processes reach them: discovers the engines, keeps a
connection to each, forwards requests to the least busy one, and watches them until they are
answered: a request whose caller has gone is cancelled there too.
"""

from __future__ import annotations

import itertools
import socket
import threading
from collections.abc import Callable, Mapping
from functools import partial

from .. import log
from ..errors import CancelledError, OverloadedError, RuntimeModelError
from ..repeating import Repeating
from ..request.cancellation import CancellationWatch
from ..request.request import Request
from ..request.responder import Array, attempt
from . import frames, protocol
from .frames import Connection, Frame
from .protocol import LinkError

DISCOVER_EVERY_S = 1.0
_UNLOADING = "the model is being unloaded: try again"


class PendingRequest:
    """A forwarded request until an engine has answered it: the first to do so, if it is sent again.

    ``data`` is its frame. ``on_lost`` is called instead of sending an error if the engine is lost
    before it has answered.
    """

    def __init__(
        self, number: int, request: Request, on_lost: Callable[[RuntimeModelError], None]
    ) -> None:
        """Raises RequestError: it is too large."""
        self.number, self.data = number, frames.encode_request(request, number)
        self.has_begun = False
        self._responder, self._on_lost = request.responder, on_lost
        self.fail, self.is_cancelled = self._responder.fail, self._responder.is_cancelled

    def answer(self, outputs: Mapping[str, Array], *, final: bool) -> None:
        self.has_begun = True
        attempt(self._responder, partial(self._responder.send, outputs, final=final))

    def on_engine_lost(self, error: RuntimeModelError) -> None:
        """Sends an error if an answer has begun, else calls ``on_lost``."""
        (self.fail if self.has_begun else self._on_lost)(error)


class EngineClient(Connection):
    """A connection to one engine. The pool forwards again what the engine gives back."""

    def __init__(self, pool: EnginePool, address: str) -> None:
        """Connects. Raises LinkError for another user's process, OSError where nobody listens."""
        super().__init__(_connected(address))
        self.address = address
        self.pending: dict[int, PendingRequest] = {}  # changed one key at a time, which is atomic
        self.is_usable = True
        self._pool, self._is_draining = pool, False

    def ask(self, pending: PendingRequest) -> bool:
        """False if the engine has disconnected: the request must be sent elsewhere."""
        self.pending[pending.number] = pending
        if self.send(pending.data):
            return True
        return self.pending.pop(pending.number, None) is None

    def cancel(self, pending: PendingRequest) -> None:
        """Tells the engine to stop computing a request, and answers it as cancelled."""
        if self.pending.pop(pending.number, None) is not None:
            self.send(frames.encode(Frame(frames.CANCEL, pending.number)))
            pending.fail(CancelledError("the request was cancelled"))

    def on_frame(self, frame: Frame) -> None:
        """Drops an answer to a request that was cancelled."""
        if frame.kind == frames.DRAIN:
            self.is_usable, self._is_draining = False, True
            self._pool.discovery.wake()
        elif frame.kind == frames.ANSWER:
            final = bool(frame.flags & frames.FINAL)
            find = self.pending.pop if final else self.pending.get
            if pending := find(frame.number, None):
                pending.answer(frame.tensors, final=final)
        elif frame.kind == frames.ERROR and len(frame.texts) == 2:
            if pending := self.pending.pop(frame.number, None):
                error = RuntimeModelError(frame.texts[1])
                error.status = frame.texts[0]
                if frame.flags & frames.UNLOADING and not pending.has_begun:
                    self.is_usable = False
                    self._pool.send(pending, error)
                else:
                    pending.fail(error)
        else:
            raise LinkError("a frame of an unknown kind")

    def on_end(self, fault: LinkError | None) -> None:
        self.is_usable = False
        error = self._pool.lose(self, fault)
        for number in list(self.pending):
            if pending := self.pending.pop(number, None):
                # A draining engine answers all it has read before it disconnects: this came late.
                if self._is_draining and not pending.has_begun:
                    self._pool.send(pending, error)
                else:
                    pending.on_engine_lost(error)


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


class EnginePool:
    """Connections to all running instances of one Triton model, and the requests that this process
    forwards to them. A thread discovers new instances once a second; ``close`` ends its threads.
    """

    def __init__(self, engine: str) -> None:
        """``engine`` is the name of the Triton model that holds the engine."""
        self.engine = engine
        self._identity = protocol.server_identity()
        self._clients: dict[str, EngineClient] = {}  # by address
        self._refusals: frozenset[str] = frozenset()  # why engines can't be reached
        self._discovery_lock = threading.Lock()
        self._closing = False
        self._numbers = itertools.count()
        self._watch = CancellationWatch(self._cancel_departed)
        self.discovery = Repeating("engine discovery", self._discover)
        self._discover()
        self.discovery.start()

    @property
    def num_waiting(self) -> int:
        return sum(len(client.pending) for client in self.clients())

    def clients(self) -> list[EngineClient]:
        """Returns all connections, those to engines that are being unloaded included."""
        return list(self._clients.values())

    def forward(self, request: Request) -> None:
        """Raises RequestError for one that is too large."""
        self.send(PendingRequest(next(self._numbers), request, request.responder.fail))

    def try_forward(self, request: Request, on_lost: Callable[[RuntimeModelError], None]) -> bool:
        """Forwards a request if an engine is connected, else returns False. ``on_lost`` is called
        with the reason if the engine is lost before it has answered. Raises RequestError: the
        request is too large.
        """
        return self._send(PendingRequest(next(self._numbers), request, on_lost))

    def send(self, pending: PendingRequest, error: RuntimeModelError | None = None) -> None:
        """Sends a request to an engine that is connected or found now. ``error`` is that of one
        that an engine gave back, because it is being unloaded; its end where no other one runs.

        There is no limit on how often: a model may be reloaded repeatedly meanwhile. It ends
        because an engine that gave a request back gets no other.
        """
        if not self._closing:
            if self._send(pending):
                return
            self._discover()
            if self._send(pending):
                return
        pending.on_engine_lost(error or OverloadedError(self._why_none()))

    def _send(self, pending: PendingRequest) -> bool:
        """Sends to the least busy connected engine; False if none is connected. Does not block."""
        while client := self._least_busy():
            if client.ask(pending):
                self._watch.wake()
                return True
            client.is_usable = False
        return False

    def _cancel_departed(self) -> int:
        """Cancels the requests of callers that have gone; returns how many are pending."""
        num_pending = 0
        for client in self.clients():
            for pending in list(client.pending.values()):
                num_pending += 1
                if pending.is_cancelled():
                    client.cancel(pending)
        return num_pending

    def is_any_reachable(self) -> bool:
        if self._least_busy() is None:
            self._discover()
        return self._least_busy() is not None

    def close(self) -> None:
        """Ends every thread; pending requests go to their ``on_lost``, or get UNAVAILABLE."""
        self._watch.close()
        self._closing = True
        self.discovery.close()
        with self._discovery_lock:
            clients = self.clients()
        for client in clients:
            client.close()

    def lose(self, client: EngineClient, fault: LinkError | None) -> OverloadedError:
        """Forgets an engine that has disconnected; returns the error of what it did not answer."""
        self._clients.pop(client.address, None)
        self.discovery.wake()
        if fault is not None:
            log.error(f"the connection to the engine {self.engine} was ended: {fault}")
        gone = f"the engine {self.engine} went away before it answered: try again"
        return OverloadedError(_UNLOADING if self._closing else gone)

    def _least_busy(self) -> EngineClient | None:
        usable = [client for client in self.clients() if client.is_usable]
        return min(usable, key=lambda client: len(client.pending), default=None)

    def _discover(self) -> float:
        """Connects to every listening engine that has no connection yet."""
        with self._discovery_lock:
            if self._closing:
                return 0.0
            addresses = protocol.find_addresses(self._identity, self.engine)
            new = [address for address in addresses if address not in self._clients]
            self._refusals = frozenset(filter(None, map(self._connect, new)))
        return DISCOVER_EVERY_S

    def _connect(self, address: str) -> str:
        """Returns why an engine can't be reached, empty where it can; logs each reason once."""
        try:
            client = EngineClient(self, address)
        except (LinkError, OSError) as error:
            if str(error) not in self._refusals:
                log.warn(f"the engine {self.engine} can't be reached: {error}")
            return str(error)
        self._clients[address] = client
        client.start()
        return ""

    def _why_none(self) -> str:
        if self._closing:
            return _UNLOADING
        for why in self._refusals:
            return f"the engine {self.engine} can't be reached: {why}"
        return f"no engine runs that could answer: load the model {self.engine}"
