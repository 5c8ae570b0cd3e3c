"""The engines of one model, for other processes: finds them, keeps a connection to each, picks the
least busy one.
"""

from __future__ import annotations

import threading
import time

from .. import log
from . import protocol
from .client import EngineClient, Retry
from .protocol import LinkError
from .waiting import UnavailableError, Waiting

_LOOK_EVERY_S = 1.0
_REFUSED_FOR_S = 5.0


class Engines:
    """All running instances of one engine model. A thread looks for new ones once a second."""

    def __init__(self, engine: str) -> None:
        """``engine`` is the name of the model in Triton."""
        self.engine = engine
        self._identity = protocol.server_identity()
        self._clients: dict[str, EngineClient] = {}  # by address
        self._refusals: dict[str, tuple[float, str]] = {}  # by address: when, and the reason
        self._looking = threading.Lock()
        self._closing = False
        self._look_now = threading.Event()
        self._retry: Retry = Waiting.lose
        self._scout = threading.Thread(target=self._look_often, name="engine scout", daemon=True)

    def start(self, retry: Retry) -> None:
        """Connects to what there is, and goes on looking; ``retry`` gets each request that an
        engine gave back.
        """
        self._retry = retry
        self._look()
        self._scout.start()

    def pass_on(self, waiting: Waiting) -> None:
        """Sends a request to the least busy engine. Raises UnavailableError where there is none."""
        if self.offer(waiting):
            return
        self._look()
        if not self.offer(waiting):
            raise UnavailableError(self._why_none())

    def offer(self, waiting: Waiting) -> bool:
        """Sends a request to the least busy engine that is connected; False where none is. Never
        waits for one.
        """
        while client := self._least_busy():
            if client.send(waiting):
                return True
            client.is_usable = False
        return False

    def clients(self) -> list[EngineClient]:
        """All that are connected, those on their way out included."""
        return list(self._clients.values())

    def is_any_reachable(self) -> bool:
        """Whether there is an engine that takes requests."""
        if self._least_busy() is None:
            self._look()
        return self._least_busy() is not None

    def close(self) -> None:
        """Hangs up everywhere; what waits is lost."""
        self._closing = True
        self._look_now.set()
        self._scout.join()
        with self._looking:
            clients = self.clients()
        for client in clients:
            client.close()

    def _least_busy(self) -> EngineClient | None:
        usable = [client for client in self.clients() if client.is_usable]
        return min(usable, key=lambda client: len(client.waiting), default=None)

    def _look_often(self) -> None:
        while not self._closing:
            self._look_now.wait(_LOOK_EVERY_S)
            self._look_now.clear()
            self._look()

    def _look(self) -> None:
        """Connects to every engine that listens and is not connected to."""
        with self._looking:
            if self._closing:
                return
            addresses = protocol.find_addresses(self._identity, self.engine)
            self._refusals = {a: self._refusals[a] for a in addresses if a in self._refusals}
            for address in addresses:
                if address not in self._clients and not self._is_refused(address):
                    self._connect(address)

    def _is_refused(self, address: str) -> bool:
        """Whether it refused a moment ago: an engine that hangs must not hold up every request."""
        refused_s, _ = self._refusals.get(address, (-_REFUSED_FOR_S, ""))
        return time.monotonic() - refused_s < _REFUSED_FOR_S

    def _connect(self, address: str) -> None:
        try:
            client = EngineClient(self.engine, address, self._look_now.set, self._gone)
        except (LinkError, OSError) as error:
            if address not in self._refusals:
                log.warn(f"the engine {self.engine} can't be reached: {error}")
            self._refusals[address] = (time.monotonic(), str(error))
            return
        self._refusals.pop(address, None)
        self._clients[address] = client
        client.start(self._retry)

    def _gone(self, client: EngineClient, fault: LinkError | None) -> None:
        self._clients.pop(client.address, None)
        self._look_now.set()
        if fault is not None:
            log.error(f"the connection to the engine {self.engine} was ended: {fault}")

    def _why_none(self) -> str:
        if self._closing:
            return "the model is being unloaded: try again"
        refusals = list(self._refusals.values())  # which a look may change meanwhile
        if refusals:
            _, why = refusals[0]
            return (
                f"the engine {self.engine} can't be reached ({why}): if this lasts, write both "
                "models anew with `hf-triton generate` and load both"
            )
        return f"no engine runs that could answer: load the model {self.engine}"
