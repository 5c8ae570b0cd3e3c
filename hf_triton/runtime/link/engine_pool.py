"""The engines of one Triton model, as other processes reach them: discovers the engines, keeps a
connection to each, picks the least busy one.
"""

from __future__ import annotations

import threading
import time

from .. import log
from . import protocol
from .client import EngineClient, Retry
from .pending_request import PendingRequest, UnavailableError
from .protocol import LinkError

_DISCOVER_EVERY_S = 1.0
_REFUSED_FOR_S = 5.0


class EnginePool:
    """Connections to all running instances of one Triton model. A thread discovers new instances
    once a second.
    """

    def __init__(self, engine: str) -> None:
        """``engine`` is the name of the Triton model that holds the engine."""
        self.engine = engine
        self._identity = protocol.server_identity()
        self._clients: dict[str, EngineClient] = {}  # by address
        self._refusals: dict[str, tuple[float, str]] = {}  # by address: when, and the reason
        self._discovery_lock = threading.Lock()
        self._closing = False
        self._wake = threading.Event()
        self._retry: Retry = PendingRequest.on_engine_lost
        self._discoverer = threading.Thread(
            target=self._discover_often, name="engine discovery", daemon=True
        )

    def start(self, retry: Retry) -> None:
        """Connects to the engines that run now, and starts to discover others; ``retry`` gets each
        request that an engine gave back.
        """
        self._retry = retry
        self._discover()
        self._discoverer.start()

    def forward(self, pending: PendingRequest) -> None:
        """Sends a request to the least busy engine. Raises UnavailableError if there is none."""
        if self.try_forward(pending):
            return
        self._discover()
        if not self.try_forward(pending):
            raise UnavailableError(self._why_none())

    def try_forward(self, pending: PendingRequest) -> bool:
        """Sends a request to the least busy connected engine; False if none is connected. Does not
        block.
        """
        while client := self._least_busy():
            if client.send(pending):
                return True
            client.is_usable = False
        return False

    def clients(self) -> list[EngineClient]:
        """All connections, those to engines that are being unloaded included."""
        return list(self._clients.values())

    def is_any_reachable(self) -> bool:
        """Whether there is an engine that takes requests."""
        if self._least_busy() is None:
            self._discover()
        return self._least_busy() is not None

    def close(self) -> None:
        """Closes every connection, as EngineClient.close does, and ends the thread."""
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
                if address not in self._clients and not self._is_refused(address):
                    self._connect(address)

    def _is_refused(self, address: str) -> bool:
        """Whether connecting failed less than ``_REFUSED_FOR_S`` ago: an engine that hangs must not
        delay every request by a timeout.
        """
        refused_s, _ = self._refusals.get(address, (-_REFUSED_FOR_S, ""))
        return time.monotonic() - refused_s < _REFUSED_FOR_S

    def _connect(self, address: str) -> None:
        try:
            client = EngineClient(self.engine, address, self._wake.set, self._on_gone)
        except (LinkError, OSError) as error:
            if address not in self._refusals:
                log.warn(f"the engine {self.engine} can't be reached: {error}")
            self._refusals[address] = (time.monotonic(), str(error))
            return
        self._refusals.pop(address, None)
        self._clients[address] = client
        client.start(self._retry)

    def _on_gone(self, client: EngineClient, fault: LinkError | None) -> None:
        self._clients.pop(client.address, None)
        self._wake.set()
        if fault is not None:
            log.error(f"the connection to the engine {self.engine} was ended: {fault}")

    def _why_none(self) -> str:
        if self._closing:
            return "the model is being unloaded: try again"
        refusals = list(self._refusals.values())  # a copy: the discovery thread changes it
        if refusals:
            _, why = refusals[0]
            return (
                f"the engine {self.engine} can't be reached ({why}): if this lasts, write both "
                "models anew with `hf-triton generate` and load both"
            )
        return f"no engine runs that could answer: load the model {self.engine}"
