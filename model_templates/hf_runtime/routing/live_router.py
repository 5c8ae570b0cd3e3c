"""Keeps a model's routing as ``routing.json`` says it, while the model serves.

A thread looks at the file twice a second. Connections to arms are made before requests go there,
and kept until the last request is answered. A file that can't be read changes nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from .. import log
from ..errors import place, reason
from ..link.engines import Engines
from ..link.forwarding import Forwarder
from ..metrics.publishing import Family, MetricsPublisher, Sample
from ..request.plain_request import RequestLike
from ..request.responder import Responder
from .arm_metrics import ARM_OUTCOMES, SHADOW_OUTCOMES, ArmCounts
from .router import Here, Request, Router, Table, engines_of, weight_of
from .routing_json import ROUTING_FILE, Routing, RoutingError, RoutingFile
from .shadow import Shadowing

_LOOK_EVERY_S = 0.5
_DRAIN_STEP_S = 0.02


@dataclass(frozen=True)
class RoutedModel:
    """The model whose requests are routed: its folder, its names, and the inputs it declares."""

    folder: Path
    name: str
    public_name: str
    inputs: tuple[str, ...]


class LiveRouting:
    """The routing of one instance. ``table`` is None while there is none, which costs nothing."""

    def __init__(
        self,
        model: RoutedModel,
        publish: Callable[[Callable[[], Iterable[Family]]], MetricsPublisher],
    ) -> None:
        """``publish`` starts to publish the families that a function gives."""
        self.table: Table | None = None
        self._model = model
        self._publish = publish
        self._file = RoutingFile(model.folder / ROUTING_FILE)
        self._forwarders: dict[str, Forwarder] = {}
        self._counts = ArmCounts("hf_triton_arm", "arm", ARM_OUTCOMES)
        self._shadow_counts = ArmCounts("hf_triton_shadow", "shadow", SHADOW_OUTCOMES)
        self._shadowing: Shadowing | None = None
        self._router: Router | None = None
        self._publisher: MetricsPublisher | None = None
        self._could_look = True
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._look_often, name="routing", daemon=True)

    def start(self) -> None:
        """Takes the routing that there is, and looks for another one from here on."""
        self._look()
        self._thread.start()

    def receive(
        self,
        table: Table,
        request: RequestLike,
        listed: Iterable[str],
        responder: Responder,
        here: Here,
        *,
        may_stream: bool,
    ) -> None:
        """Hands a request to its arm, which may be ``here``. ``table`` is what the caller found."""
        assert self._router is not None
        self._router.receive(Request(request, listed, responder, may_stream), table, here)

    def drain(self, timeout_s: float) -> None:
        """Waits until other arms have answered what they have, at most so long."""
        if self._router is None or self._router.is_closing:
            return
        deadline_s = time.monotonic() + timeout_s
        while self._num_waiting() and time.monotonic() < deadline_s:
            time.sleep(_DRAIN_STEP_S)
        self._router.is_closing = True

    def close(self) -> None:
        """Answers what other arms still have with UNAVAILABLE, and ends every thread."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._router is not None:
            self._router.is_closing = True
        if self._shadowing is not None:
            self._shadowing.close()
        for forwarder in self._forwarders.values():
            forwarder.close()
        if self._publisher is not None:
            self._publisher.close()

    def _look_often(self) -> None:
        while not self._closing.wait(_LOOK_EVERY_S):
            try:
                self._look()
            except Exception as error:
                log.error(f"{self._model.name}: {ROUTING_FILE}: {place(error)}")

    def _look(self) -> None:
        try:
            has_changed = self._file.look()
        except OSError as error:
            if self._could_look:
                self._could_look = False
                self._warn(error)
            return
        self._could_look = True
        if not has_changed:
            self._leave_unused()
            return
        try:
            routing = self._file.read()
        except RoutingError as error:
            self._warn(error)
        else:
            self._adopt(routing)

    def _warn(self, error: Exception) -> None:
        kept = "the routing before it stays" if self.table else "nothing is routed"
        log.warn(f"{self._model.name}: {ROUTING_FILE}: {reason(error)}; {kept}")

    def _adopt(self, routing: Routing | None) -> None:
        if routing is None:
            if self.table is not None:
                log.info(f"{self._model.name}: {ROUTING_FILE} is gone, every request stays here")
            self.table = None
            return
        self._prepare()
        for engine in engines_of(routing, self._model.name) - self._forwarders.keys():
            self._forwarders[engine] = Forwarder(Engines(engine))
        for arm in routing.arms:
            self._counts.begin(arm.name)
        if routing.shadow:
            self._shadow_counts.begin(routing.shadow.name)
        own, salt = self._model.name, self._model.public_name
        self.table = Table(routing, own, salt, dict(self._forwarders))
        log.info(f"{own}: {_described(routing)}")

    def _prepare(self) -> None:
        """Before the first routing: what no model without one needs."""
        if self._router is None:
            self._shadowing = Shadowing(self._shadow_counts)
            self._router = Router(self._model.inputs, self._counts, self._shadowing)
            self._publisher = self._publish(self._families)

    def _leave_unused(self) -> None:
        """Hangs up on arms that are no longer there, once they have answered what they have."""
        used = engines_of(self.table.routing if self.table else None, self._model.name)
        for engine in self._forwarders.keys() - used:
            if not self._forwarders[engine].num_waiting:
                self._forwarders.pop(engine).close()

    def _num_waiting(self) -> int:
        """Requests that other arms have; copies are nobody's."""
        ways = dict(self._forwarders)
        routing = self.table.routing if self.table else None
        if (
            routing
            and routing.shadow
            and all(arm.engine != routing.shadow.engine for arm in routing.arms)
        ):
            ways.pop(routing.shadow.engine, None)
        return sum(way.num_waiting for way in ways.values())

    def _families(self) -> Iterator[Family]:
        routing = self.table.routing if self.table else None
        weights = tuple(
            Sample({"arm": arm}, float(weight_of(routing, arm))) for arm in self._counts.names()
        )
        text = "Percent of the requests that are an arm's"
        yield Family("hf_triton_arm_weight", text, False, weights)
        yield from self._counts.families()
        yield from self._shadow_counts.families()


def _described(routing: Routing) -> str:
    shares = [f"{float(arm.weight):g} % {arm.name}" for arm in routing.arms]
    what = f"requests go {', '.join(shares)}" if shares else "every request stays here"
    sticky = f", sticky by {routing.sticky}" if routing.sticky and shares else ""
    shadow = routing.shadow
    copies = f"; copies of {float(shadow.percent):g} % to {shadow.engine}" if shadow else ""
    return f"{what}{sticky}{copies}"
