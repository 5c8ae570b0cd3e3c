"""Sends each of a model's requests to one of its arms, as a routing table says.

An arm is a Triton model that gets a share of the requests. Other models are reached over the engine
link; the model itself is its own arm, and also answers for an arm that can't be reached. Knows
nothing of what the requests ask for.
"""

from __future__ import annotations

import hashlib
import math
import random
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from itertools import accumulate
from typing import Any

from .. import log
from ..errors import OverloadedError, RequestError, RuntimeModelError
from ..link.engine_pool import EnginePool
from ..link.link_request import LinkRequest
from ..request.abandoned_requests import call_in
from ..request.cache_salt import read_parameters
from ..request.plain_request import RequestLike, read_plain
from ..request.responder import Responder
from ..request.stream_journal import model_that_began
from ..request.tensors import is_server_parameter
from .arm_metrics import ArmMetrics, CountedResponder
from .routing_json import REQUEST_ID, Arm, Routing

AnswerLocally = Callable[[RequestLike, Iterable[str], Responder], None]


@dataclass(frozen=True)
class RoutedRequest:
    """A request that has no arm yet; ``may_stream``: its caller takes several responses."""

    read: RequestLike
    requested_outputs: Iterable[str]
    responder: Responder
    may_stream: bool


class RoutingTable:
    """The routing at one moment: never changed, only replaced."""

    def __init__(
        self, routing: Routing, own: str, salt: str, forwarders: Mapping[str, EnginePool]
    ) -> None:
        """``own`` is the name of this Triton model. ``salt`` goes into the hash of sticky values,
        so that two models don't put the same users into the same arm. ``forwarders`` are by the
        name of the Triton model that they forward to.
        """
        self.routing = routing
        self._own, self._salt, self._forwarders = own, salt, forwarders
        self._arms = {arm.name: arm for arm in routing.arms}
        self._split = TrafficSplit([arm.weight for arm in routing.arms])

    @property
    def own_arm(self) -> Arm | None:
        """The arm that is this model itself; None where none is."""
        return next((arm for arm in self.routing.arms if arm.engine == self._own), None)

    def arm_that_began(self, request: RequestLike) -> Arm | None:
        """The arm whose process had answered the beginning of a request when it died."""
        began = model_that_began(call_in(request.parameters()))
        return next((arm for arm in self.routing.arms if began and arm.engine == began), None)

    def choose(self, sticky_value: str | None) -> Arm:
        """The arm for the next request."""
        arms = self.routing.arms
        if sticky_value is None:
            return arms[self._split.next()]
        shares = ((arm.name, arm.weight) for arm in arms)
        return self._arms[sticky_share(self._salt, sticky_value, shares)]

    def forwarder(self, arm: Arm) -> EnginePool | None:
        """Forwards to an arm; None for the model's own."""
        return None if arm.engine == self._own else self._forwarders[arm.engine]


class Router:
    """Sends each request to its arm."""

    def __init__(self, inputs: Iterable[str], counts: ArmMetrics) -> None:
        """``inputs`` are the names of the input tensors that the model declares."""
        self._inputs = frozenset(inputs)
        self._counts = counts
        self._unreachable: set[str] = set()  # names of arms, each logged once
        self.is_closing = False

    def receive(
        self, request: RoutedRequest, table: RoutingTable, answer_locally: AnswerLocally
    ) -> None:
        """Forwards a request to its arm's model; ``answer_locally`` takes those of the own arm."""
        request, value = self._take_sticky_value(request, table.routing.sticky)
        arm = table.arm_that_began(request.read) or table.choose(value)
        forwarder = table.forwarder(arm)
        if forwarder is None:
            end = partial(self._counts.ended, arm.name)
            responder = CountedResponder(request.responder, end)
            answer_locally(request.read, request.requested_outputs, responder)
        else:
            self._forward(request, table, arm, forwarder, answer_locally)

    def _forward(
        self,
        request: RoutedRequest,
        table: RoutingTable,
        arm: Arm,
        forwarder: EnginePool,
        answer_locally: AnswerLocally,
    ) -> None:
        # A copy, because Triton frees its tensors after execute, and the own arm may have to answer
        # the request later.
        plain = read_plain(request.read, self._inputs)
        kept = replace(request, read=plain, requested_outputs=list(request.requested_outputs))
        passed = LinkRequest(
            plain.inputs,
            plain.parameters(),
            list(kept.requested_outputs),
            plain.request_id,
            may_stream=request.may_stream,
            is_routed=True,
        )
        end = partial(self._counts.ended, arm.name)
        responder = CountedResponder(request.responder, end)
        fall_back = partial(self._fall_back, kept, table, arm, answer_locally)
        try:
            taken = forwarder.try_forward(passed, responder, fall_back)
        except RequestError:
            taken = False  # too large for the link, but not for the model itself
        if not taken:
            fall_back(None)
        elif arm.name in self._unreachable:
            self._unreachable.discard(arm.name)

    def _fall_back(
        self,
        request: RoutedRequest,
        table: RoutingTable,
        arm: Arm,
        answer_locally: AnswerLocally,
        error: RuntimeModelError | None,
    ) -> None:
        """Lets the own arm answer, because the other one is lost and has answered nothing."""
        self._counts.ended(arm.name, "fallback")
        if arm.name not in self._unreachable:
            self._unreachable.add(arm.name)
            log.warn(f"arm {arm.name}: {arm.engine} is not there, its requests are answered here")
        if self.is_closing:
            unloading = OverloadedError("the model is being unloaded: try again")
            request.responder.fail(error or unloading)
            return
        responder = request.responder
        if own := table.own_arm:
            responder = CountedResponder(responder, partial(self._counts.ended, own.name))
        answer_locally(request.read, request.requested_outputs, responder)

    def _take_sticky_value(
        self, request: RoutedRequest, sticky: str | None
    ) -> tuple[RoutedRequest, str | None]:
        """The request and its sticky value: requests of one value go to one arm. None without one.

        A parameter that only serves for this is removed: the task would refuse it as unknown.
        """
        if sticky is None:
            return request, None
        if sticky == REQUEST_ID:
            return request, request.read.request_id or None
        tensor = request.read.tensor(sticky)
        if tensor is not None:
            values = tensor.as_numpy().reshape(-1)[:1].tolist()
            return request, _text(values[0]) if values else None
        parameters = read_parameters(request.read.parameters())
        if sticky not in parameters:
            return request, None
        value = _text(parameters[sticky])
        if sticky in self._inputs or is_server_parameter(sticky):
            return request, value
        del parameters[sticky]
        plain = read_plain(request.read, self._inputs)
        return replace(request, read=replace(plain, parameter_values=parameters)), value


def _text(value: Any) -> str | None:
    """A sticky value as a text, the same from a tensor and from a parameter; None if empty."""
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    return text or None


def target_models(routing: Routing | None, own: str) -> set[str]:
    """The names of the Triton models that a routing sends requests to, without ``own``."""
    if routing is None:
        return set()
    return {arm.engine for arm in routing.arms} - {own}


def weight_of(routing: Routing | None, arm: str) -> Fraction:
    """An arm's share in percent; 0 if the routing has it no more."""
    arms = routing.arms if routing else ()
    return next((one.weight for one in arms if one.name == arm), Fraction(0))


class TrafficSplit:
    """Chooses shares in exact proportion: of each block of requests, the smallest that the shares
    divide evenly (10 for 90 % and 10 %, 200 for 99.5 % and 0.5 %), each share gets exactly its
    part. Within a block the order is random, so that clients that alternate don't always get the
    same share.
    """

    def __init__(self, shares: Sequence[Fraction]) -> None:
        """``shares`` are 0 or more, and at least one is above 0."""
        total = sum(shares, Fraction(0))
        parts = [share / total for share in shares]
        num_in_block = math.lcm(*(part.denominator for part in parts))
        self._block = [int(part * num_in_block) for part in parts]
        self._left = list(self._block)
        self._lock = threading.Lock()

    def next(self) -> int:
        """The index of the next request's share."""
        with self._lock:
            place = random.randrange(sum(self._left))
            number = bisect_right(list(accumulate(self._left)), place)
            self._left[number] -= 1
            if not any(self._left):
                self._left = list(self._block)
        return number


def sticky_share(salt: str, value: str, shares: Iterable[tuple[str, Fraction]]) -> str:
    """The name of the share of ``value``, always the same one; ``shares`` are names and sizes, not
    all 0.

    Weighted rendezvous hashing (Schindelhauer and Schomaker 2005): each share draws an exponential
    time from the hash of its name and the value, with its size as the rate, and the shortest wins.
    So a share that grows only takes values from others, and one that shrinks only gives values
    away; cut points on a line would also move values between shares that did not change.
    """
    times = ((_exponential(salt, name, value) / size, name) for name, size in shares if size)
    return min(times)[1]


def _exponential(*parts: str) -> float:
    """An exponentially distributed number, the same for the same texts on every machine."""
    text = "\0".join(parts).encode("utf-8", "surrogatepass")
    bits = int.from_bytes(hashlib.sha256(text).digest()[:8], "big") >> 11
    return -math.log((bits + 0.5) / 2**53)
