"""Sends each of a model's requests to one of its arms: Triton models that each get a share of the
requests, as ``routing.json`` in the model's folder says at the moment.

A thread reads the file twice a second. Connections to other arms are made before requests go there,
and kept until the last one is answered; the model answers for an arm that can't be reached. A file
that can't be read or parsed changes nothing.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from typing import Any

from .. import log
from ..errors import OverloadedError, RequestError, RuntimeModelError, reason
from ..link.engine_pool import EnginePool
from ..metrics.observations import Metric, Observations
from ..metrics.publishing import SECONDS, Family, Sample
from ..repeating import Repeating
from ..request.request import Request
from ..request.responder import EndingResponder, attempt, status_and_text
from ..request.stream_journal import model_that_began
from ..request.tensors import is_server_parameter
from ..weights.served_model import ServedModel

ROUTING_FILE = "routing.json"
REQUEST_ID = "request_id"
# hf_triton/serving/apply/session.py waits longer than this for a new routing.
CHECK_EVERY_S = 0.5
_DRAIN_STEP_S = 0.02

AnswerLocally = Callable[[Request], None]
_OUTCOMES = ("answered", "refused", "unavailable", "failed", "cancelled", "fallback")
_BY_STATUS = dict.fromkeys(("INVALID_ARG", "UNSUPPORTED", "NOT_FOUND"), "refused")
_BY_STATUS |= {"UNAVAILABLE": "unavailable", "CANCELLED": "cancelled"}
_REQUESTS = Metric(
    name="hf_triton_arm_requests_total",
    type="counter",
    help="Requests of each arm, by how they ended",
    labels=("arm", "outcome"),
)
_DURATION = Metric(
    name="hf_triton_arm_duration_seconds",
    type="histogram",
    help="Seconds from a request to the whole answer of its arm",
    labels=("arm",),
    buckets=SECONDS,
    may_fall=False,
)


@dataclass(frozen=True)
class Arm:
    """``engine`` is the Triton model that answers, ``weight`` its share in percent."""

    name: str
    engine: str
    weight: Fraction


class Routing:
    """Never changed, only replaced. ``sticky`` is REQUEST_ID, an input or a parameter.

    Of each block of requests, the smallest that the weights divide evenly (10 for 90 % and 10 %,
    200 for 99.5 % and 0.5 %), each arm gets exactly its part. Within a block the order is random,
    so that clients that alternate don't always get the same arm.
    """

    def __init__(self, arms: Sequence[Arm], sticky: str | None) -> None:
        """Raises ValueError where the weights are no percentages of a whole."""
        shares = [arm.weight / 100 for arm in arms]
        total = sum(shares, Fraction(0))
        if total != 1 or min(shares) < 0:
            got = f"weights add up to {float(total * 100):g}, not 100, or one is negative"
            raise ValueError(got)
        self.arms, self.sticky = tuple(arms), sticky
        num_in_block = math.lcm(*(share.denominator for share in shares))
        self._block = [int(share * num_in_block) for share in shares]
        self._left_in_block = [*self._block]
        self._lock = threading.Lock()

    def choose(self, salt: str, sticky_value: str | None) -> Arm:
        """The arm for the next request; always the same one for a sticky value. ``salt`` goes into
        its hash, so that two models don't put the same users into the same arm.

        Weighted rendezvous hashing (Schindelhauer and Schomaker 2005): each arm draws an
        exponential time from the hash of its name and the value, with its weight as the rate, and
        the shortest wins. So an arm that grows only takes values from others, and one that shrinks
        only gives values away; cut points on a line would also move values between arms that did
        not change.
        """
        if sticky_value is not None:
            value, weighed = sticky_value, (arm for arm in self.arms if arm.weight)
            return min(weighed, key=lambda arm: _exponential(salt, arm.name, value) / arm.weight)
        with self._lock:
            (number,) = random.choices(range(len(self._left_in_block)), self._left_in_block)
            self._left_in_block[number] -= 1
            if not any(self._left_in_block):
                self._left_in_block = [*self._block]
        return self.arms[number]

    def arm_of(self, engine: str) -> Arm | None:
        return next((arm for arm in self.arms if arm.engine == engine), None)

    def __str__(self) -> str:
        shares = [f"{float(arm.weight):g} % {arm.name}" for arm in self.arms]
        sticky = f", sticky by {self.sticky}" if self.sticky else ""
        return f"requests go {', '.join(shares)}{sticky}"


def parse(content: bytes) -> Routing:
    """The file's content, each number exactly as written: 0.1 is a tenth. Raises ValueError."""
    try:
        values = json.loads(content, parse_int=Fraction, parse_float=Fraction)
        return Routing([Arm(**arm) for arm in values["arms"]], values["sticky"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"not as the generator writes it: {error}") from error


def _exponential(*parts: str) -> float:
    """An exponentially distributed number, the same for the same texts on every machine."""
    text = "\0".join(parts).encode("utf-8", "surrogatepass")
    bits = int.from_bytes(hashlib.sha256(text).digest()[:8], "big") >> 11
    return -math.log((bits + 0.5) / 2**53)


class Router:
    """Routes the requests of one instance. ``routing`` is None while there is none."""

    def __init__(self, served: ServedModel, inputs: Iterable[str]) -> None:
        """``inputs`` are the declared tensors."""
        self.routing: Routing | None = None
        self._own, self._salt, self._inputs = served.name, served.public_name, frozenset(inputs)
        self._path, self._content, self._problem = served.folder / ROUTING_FILE, b"", ""
        self._pools: dict[str, EnginePool] = {}  # by the name of the other arms' models
        self._arms: dict[str, None] = {}  # all that there were
        self._metrics = Observations((_REQUESTS, _DURATION))
        self._unreachable: set[str] = set()  # names of arms, each logged once
        self._is_closing = False
        self._thread = Repeating("routing", self._check)

    def start(self) -> None:
        self._check()
        self._thread.start()

    def receive(self, routing: Routing, request: Request, answer_locally: AnswerLocally) -> None:
        """Sends a request to its arm. ``routing`` may have been replaced meanwhile."""
        request, value = self._take_sticky_value(request, routing.sticky)
        # Another process may have begun to answer when it died.
        began = model_that_began(request.call)
        arm = routing.arm_of(began) or routing.choose(self._salt, value)
        counted = self._counted(request, arm)
        if arm.engine == self._own:
            attempt(counted.responder, answer_locally, counted)
            return

        def fall_back(error: RuntimeModelError | None) -> None:
            """Lets the own arm answer, because the other one is lost and has answered nothing."""
            self._count(arm.name, "fallback")
            if arm.name not in self._unreachable:
                self._unreachable.add(arm.name)
                gone = f"{arm.engine} is not loaded; this model answers its requests"
                log.warn(f"arm {arm.name}: {gone}")
            if self._is_closing:
                unloaded = OverloadedError("the model is being unloaded: try again")
                request.responder.fail(error or unloaded)
                return
            own = routing.arm_of(self._own)
            given = self._counted(request, own) if own else request
            attempt(given.responder, answer_locally, given)

        pool = self._pools.get(arm.engine)  # closed and gone where the routing has changed since
        is_taken = False
        with suppress(RequestError):  # too large for the link, but not for the model itself
            passed = replace(counted, is_routed=True)
            is_taken = pool is not None and pool.try_forward(passed, fall_back)
        if is_taken:
            self._unreachable.discard(arm.name)
        else:
            fall_back(None)

    def drain(self, timeout_s: float) -> None:
        """Waits at most ``timeout_s`` until other arms have answered the requests sent to them."""
        deadline_s = time.monotonic() + timeout_s
        while any(pool.num_waiting for pool in list(self._pools.values())):
            if time.monotonic() >= deadline_s:
                break
            time.sleep(_DRAIN_STEP_S)
        self._is_closing = True

    def close(self) -> None:
        """Answers what other arms have not answered with UNAVAILABLE, and ends every thread."""
        self._is_closing = True
        self._thread.close()
        for pool in self._pools.values():
            pool.close()

    def _counted(self, request: Request, arm: Arm) -> Request:
        ended = partial(self._ended, arm.name, time.monotonic())
        return replace(request, responder=EndingResponder(request.responder, ended))

    def _ended(self, arm: str, began_s: float, error: Exception | None) -> None:
        if error is not None:
            self._count(arm, _BY_STATUS.get(status_and_text(error)[0], "failed"))
            return
        self._count(arm, "answered")
        self._metrics.observe(_DURATION.name, time.monotonic() - began_s, {"arm": arm})

    def _count(self, arm: str, outcome: str, number: int = 1) -> None:
        self._metrics.observe(_REQUESTS.name, number, {"arm": arm, "outcome": outcome})

    def _take_sticky_value(
        self, request: Request, sticky: str | None
    ) -> tuple[Request, str | None]:
        """The request and its sticky value: requests of one value go to one arm. None without one.

        A parameter that only serves for this is removed: the task would refuse it as unknown.
        """
        if sticky is None:
            return request, None
        if sticky == REQUEST_ID:
            return request, request.responder.request_id or None
        if sticky in request.inputs:
            values = request.inputs[sticky].reshape(-1)[:1].tolist()
            return request, _text(values[0]) if values else None
        if sticky not in request.parameters:
            return request, None
        value = _text(request.parameters[sticky])
        if sticky in self._inputs or is_server_parameter(sticky):
            return request, value
        left = {name: one for name, one in request.parameters.items() if name != sticky}
        return replace(request, parameters=left), value

    def _check(self) -> float:
        """Applies a changed file, empty if there is none; disconnects from unused arms."""
        problem = ""
        try:
            content = self._path.read_bytes() if self._path.exists() else b""
            is_changed, self._content = content != self._content, content
            if is_changed:
                self._apply(parse(content) if content else None)
        except (OSError, ValueError) as error:
            problem = reason(error)
        if problem not in ("", self._problem):
            kept = "the previous routing stays" if self.routing else "no request is routed"
            log.warn(f"{self._own}: {ROUTING_FILE}: {problem}; {kept}")
        self._problem = problem
        used = {arm.engine for arm in self.routing.arms} if self.routing else set()
        for engine in self._pools.keys() - used:
            if not self._pools[engine].num_waiting:
                self._pools.pop(engine).close()
        return CHECK_EVERY_S

    def _apply(self, routing: Routing | None) -> None:
        if routing is None:
            log.info(f"{self._own}: {ROUTING_FILE} was removed; this model answers every request")
            self.routing = None
            return
        for arm in routing.arms:
            self._arms[arm.name] = None
            for outcome in _OUTCOMES:  # published from here on
                self._count(arm.name, outcome, 0)
            if arm.engine not in (self._own, *self._pools):
                self._pools[arm.engine] = EnginePool(arm.engine)
        self.routing = routing
        log.info(f"{self._own}: {routing}")

    def families(self) -> Iterator[Family]:
        shares = {arm.name: arm.weight for arm in self.routing.arms} if self.routing else {}
        weights = tuple(Sample({"arm": arm}, float(shares.get(arm, 0))) for arm in list(self._arms))
        text = "Percent of the requests that an arm gets"
        yield Family("hf_triton_arm_weight", text, False, weights)
        yield from self._metrics.families()


def _text(value: Any) -> str | None:
    """A sticky value as a text, the same from a tensor and from a parameter; None if empty."""
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    return text or None
