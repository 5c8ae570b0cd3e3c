"""Follows ``routing.json`` while the model serves.

A thread reads the file twice a second. Connections to arms are made before requests go there, and
kept until the last request is answered. A file that can't be read or parsed changes nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from .. import log
from ..errors import place, reason
from ..link.engine_pool import EnginePool
from ..metrics.publishing import Family, MetricsPublisher, Sample
from ..request.plain_request import RequestLike
from ..request.responder import Responder
from .arm_metrics import ArmMetrics
from .router import AnswerLocally, RoutedRequest, Router, RoutingTable, target_models, weight_of
from .routing_json import ROUTING_FILE, Routing, RoutingError, RoutingFile

# hf_triton/serving/apply/execution.py waits longer than this for a new routing.
_CHECK_EVERY_S = 0.5
_DRAIN_STEP_S = 0.02


@dataclass(frozen=True)
class RoutedModel:
    """The model whose requests are routed: its folder, its names in Triton and in models.yaml, and
    the inputs that it declares.
    """

    folder: Path
    name: str
    public_name: str
    inputs: tuple[str, ...]


class LiveRouter:
    """Routes the requests of one instance. ``table`` is None while there is no routing: then a
    request costs nothing more than that look.
    """

    def __init__(
        self,
        model: RoutedModel,
        publish: Callable[[Callable[[], Iterable[Family]]], MetricsPublisher],
    ) -> None:
        """``publish`` starts to publish the metric families that a function returns."""
        self.table: RoutingTable | None = None
        self._model = model
        self._publish = publish
        self._file = RoutingFile(model.folder / ROUTING_FILE)
        self._forwarders: dict[str, EnginePool] = {}
        self._counts = ArmMetrics()
        self._router: Router | None = None
        self._publisher: MetricsPublisher | None = None
        self._could_read = True
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._check_often, name="routing", daemon=True)

    def start(self) -> None:
        """Reads the routing, and starts the thread that follows it."""
        self._check()
        self._thread.start()

    def receive(
        self,
        table: RoutingTable,
        request: RequestLike,
        requested_outputs: Iterable[str],
        responder: Responder,
        answer_locally: AnswerLocally,
        *,
        may_stream: bool,
    ) -> None:
        """Sends a request to its arm; the model's own is ``answer_locally``. ``table`` is the one
        that the caller found in ``self.table``, which may be replaced meanwhile.
        """
        assert self._router is not None
        self._router.receive(
            RoutedRequest(request, requested_outputs, responder, may_stream), table, answer_locally
        )

    def drain(self, timeout_s: float) -> None:
        """Waits at most ``timeout_s`` until other arms have answered the requests sent to them."""
        if self._router is None or self._router.is_closing:
            return
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s and any(
            forwarder.num_waiting for forwarder in list(self._forwarders.values())
        ):
            time.sleep(_DRAIN_STEP_S)
        self._router.is_closing = True

    def close(self) -> None:
        """Answers requests that other arms have not answered with UNAVAILABLE, and ends every
        thread.
        """
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._router is not None:
            self._router.is_closing = True
        for forwarder in self._forwarders.values():
            forwarder.close()
        if self._publisher is not None:
            self._publisher.close()

    def _check_often(self) -> None:
        while not self._closing.wait(_CHECK_EVERY_S):
            try:
                self._check()
            except Exception as error:
                log.error(f"{self._model.name}: {ROUTING_FILE}: {place(error)}")

    def _check(self) -> None:
        try:
            has_changed = self._file.refresh()
        except OSError as error:
            if self._could_read:
                self._could_read = False
                self._warn(error)
            return
        self._could_read = True
        if not has_changed:
            self._close_unused()
            return
        try:
            routing = self._file.read()
        except RoutingError as error:
            self._warn(error)
        else:
            self._apply(routing)

    def _warn(self, error: Exception) -> None:
        kept = "the routing before it stays" if self.table else "nothing is routed"
        log.warn(f"{self._model.name}: {ROUTING_FILE}: {reason(error)}; {kept}")

    def _apply(self, routing: Routing | None) -> None:
        if routing is None:
            if self.table is not None:
                log.info(f"{self._model.name}: {ROUTING_FILE} is gone, every request stays here")
            self.table = None
            return
        self._start_router()
        for engine in target_models(routing, self._model.name) - self._forwarders.keys():
            self._forwarders[engine] = EnginePool(engine)
        for arm in routing.arms:
            self._counts.begin(arm.name)
        own, salt = self._model.name, self._model.public_name
        self.table = RoutingTable(routing, own, salt, dict(self._forwarders))
        log.info(f"{own}: {_described(routing)}")

    def _start_router(self) -> None:
        """Made with the first routing: most models never have one."""
        if self._router is None:
            self._router = Router(self._model.inputs, self._counts)
            self._publisher = self._publish(self._families)

    def _close_unused(self) -> None:
        """Disconnects from arms that the routing has no more, once they have answered."""
        used = target_models(self.table.routing if self.table else None, self._model.name)
        for engine in self._forwarders.keys() - used:
            if not self._forwarders[engine].num_waiting:
                self._forwarders.pop(engine).close()

    def _families(self) -> Iterator[Family]:
        routing = self.table.routing if self.table else None
        weights = tuple(
            Sample({"arm": arm}, float(weight_of(routing, arm))) for arm in self._counts.names()
        )
        text = "Percent of the requests that are an arm's"
        yield Family("hf_triton_arm_weight", text, False, weights)
        yield from self._counts.families()


def _described(routing: Routing) -> str:
    shares = [f"{float(arm.weight):g} % {arm.name}" for arm in routing.arms]
    sticky = f", sticky by {routing.sticky}" if routing.sticky else ""
    return f"requests go {', '.join(shares)}{sticky}"
