"""The engines of one Triton model, as other processes reach them: discovers the engines, keeps a
connection to each, forwards requests to the least busy one, and watches them until they are
answered: a request whose caller has gone is cancelled there too.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable

from .. import log
from ..errors import OverloadedError, RuntimeModelError
from ..request.cancellation import CancellationWatch
from ..request.responder import Responder
from . import protocol
from .client import EngineClient, PendingRequest
from .frames import LinkRequest
from .protocol import LinkError

_DISCOVER_EVERY_S = 1.0


class EnginePool:
    """Connections to all running instances of one Triton model, and the requests that this process
    forwards to them. A thread discovers new instances once a second; ``close`` ends its threads.
    """

    def __init__(self, engine: str) -> None:
        """``engine`` is the name of the Triton model that holds the engine."""
        self.engine = engine
        self._identity = protocol.server_identity()
        self._clients: dict[str, EngineClient] = {}  # by address
        self._refusals: dict[str, str] = {}  # reasons by address
        self._discovery_lock = threading.Lock()
        self._closing = False
        self._wake = threading.Event()
        self._numbers = itertools.count()
        self._watch = CancellationWatch(self._cancel_departed)
        self._discover()
        self._discoverer = threading.Thread(
            target=self._discover_often, name="engine discovery", daemon=True
        )
        self._discoverer.start()

    @property
    def num_waiting(self) -> int:
        return sum(len(client.pending) for client in self.clients())

    def forward(self, request: LinkRequest, responder: Responder) -> None:
        """Forwards a request; ``responder`` answers it, whatever happens to the engine.

        Raises:
            RequestError: it is too large.
            OverloadedError: there is no engine.
        """
        self._forward(self._pending(request, responder, None))

    def try_forward(
        self,
        request: LinkRequest,
        responder: Responder,
        on_lost: Callable[[RuntimeModelError], None],
    ) -> bool:
        """Forwards a request if an engine is connected, else returns False. ``on_lost`` is called
        with the reason if the engine is lost before it has answered. Raises RequestError: the
        request is too large.
        """
        return self._send(self._pending(request, responder, on_lost))

    def _pending(
        self,
        request: LinkRequest,
        responder: Responder,
        on_lost: Callable[[RuntimeModelError], None] | None,
    ) -> PendingRequest:
        number = next(self._numbers)
        data = request.encode(number)
        return PendingRequest(number, data, request.outputs, responder, on_lost)

    def _forward(self, pending: PendingRequest) -> None:
        """Raises OverloadedError if there is no engine."""
        if self._send(pending):
            return
        self._discover()
        if not self._send(pending):
            raise OverloadedError(self._why_none())

    def _send(self, pending: PendingRequest) -> bool:
        """To the least busy connected engine; False if none is connected. Does not block."""
        while client := self._least_busy():
            if client.send(pending):
                self._watch.wake()
                return True
            client.is_usable = False
        return False

    def _forward_again(self, pending: PendingRequest, error: RuntimeModelError) -> None:
        """Forwards a request that an engine gave back, because it is being unloaded, to another
        engine.

        There is no limit on how often: a model may be reloaded repeatedly meanwhile. It ends
        because an engine that gave a request back gets no other.
        """
        try:
            self._forward(pending)
        except RuntimeModelError:  # there is no other engine
            pending.on_engine_lost(error)

    def _cancel_departed(self) -> int:
        """Cancels the requests of callers that have gone; returns how many are pending."""
        num_pending = 0
        for client in self.clients():
            for pending in list(client.pending.values()):
                num_pending += 1
                if pending.is_cancelled():
                    client.cancel(pending)
        return num_pending

    def clients(self) -> list[EngineClient]:
        """All connections, those to engines that are being unloaded included."""
        return list(self._clients.values())

    def is_any_reachable(self) -> bool:
        """Whether there is an engine that takes requests."""
        if self._least_busy() is None:
            self._discover()
        return self._least_busy() is not None

    def close(self) -> None:
        """Ends every thread; pending requests go to their ``on_lost``, or get UNAVAILABLE."""
        self._watch.close()
        self._closing = True
        self._wake.set()
        self._discoverer.join()
        with self._discovery_lock:
            clients = self.clients()
        for client in clients:
            client.close()

    def _least_busy(self) -> EngineClient | None:
        usable = [client for client in self.clients() if client.is_usable]
        return min(usable, key=lambda client: len(client.pending), default=None)

    def _discover_often(self) -> None:
        while not self._closing:
            self._wake.wait(_DISCOVER_EVERY_S)
            self._wake.clear()
            self._discover()

    def _discover(self) -> None:
        """Connects to every listening engine that has no connection yet."""
        with self._discovery_lock:
            if self._closing:
                return
            addresses = protocol.find_addresses(self._identity, self.engine)
            self._refusals = {a: self._refusals[a] for a in addresses if a in self._refusals}
            for address in addresses:
                if address not in self._clients:
                    self._connect(address)

    def _connect(self, address: str) -> None:
        try:
            client = EngineClient(self.engine, address, self._wake.set, self._on_gone)
        except (LinkError, OSError) as error:
            if address not in self._refusals:
                log.warn(f"the engine {self.engine} can't be reached: {error}")
            self._refusals[address] = str(error)
            return
        self._refusals.pop(address, None)
        self._clients[address] = client
        client.start(self._forward_again)

    def _on_gone(self, client: EngineClient, fault: LinkError | None) -> None:
        self._clients.pop(client.address, None)
        self._wake.set()
        if fault is not None:
            log.error(f"the connection to the engine {self.engine} was ended: {fault}")

    def _why_none(self) -> str:
        if self._closing:
            return "the model is being unloaded: try again"
        why = next(iter(list(self._refusals.values())), None)  # the discovery thread changes it
        if why is not None:
            return f"the engine {self.engine} can't be reached: {why}"
        return f"no engine runs that could answer: load the model {self.engine}"
