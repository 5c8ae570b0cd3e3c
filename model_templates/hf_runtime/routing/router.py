"""Shares a model's requests with other models, its arms, as ``routing.json`` says at the moment.

An arm is reached over the engine link; the model's own arm is the model itself, which also answers
what another arm is not there for. Knows nothing of what the requests ask for.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from typing import Any

from .. import log
from ..errors import OverloadedError, RequestError, RuntimeModelError
from ..link.forwarding import Forwarder
from ..link.link_request import LinkRequest
from ..request.plain_request import PlainRequest, RequestLike, read_plain
from ..request.responder import Responder
from .arm_metrics import ArmCounts, CountedResponder
from .routing_json import REQUEST_ID, Arm, Routing
from .shadow import Shadowing
from .traffic_split import Split, sticky_share

Here = Callable[[RequestLike, Iterable[str], Responder], None]


@dataclass(frozen=True)
class Request:
    """A request before it is an arm's; ``may_stream`` where its caller takes several responses."""

    read: RequestLike
    listed: Iterable[str]
    responder: Responder
    may_stream: bool


class Table:
    """One state of the routing: never changed, only replaced."""

    def __init__(
        self, routing: Routing, own: str, salt: str, forwarders: Mapping[str, Forwarder]
    ) -> None:
        """``own`` is this model in Triton, ``salt`` what makes its sticky values fall otherwise
        than other models'; ``forwarders`` by the model in Triton that they lead to.
        """
        self.routing = routing
        self._own, self._salt, self._forwarders = own, salt, forwarders
        self._arms = {arm.name: arm for arm in routing.arms}
        self._split = Split([arm.weight for arm in routing.arms]) if routing.arms else None
        shadow = routing.shadow
        self._copies = Split([shadow.percent, 100 - shadow.percent]) if shadow else None

    @property
    def own_arm(self) -> Arm | None:
        """This model's; None where it has no arms."""
        return next((arm for arm in self.routing.arms if arm.engine == self._own), None)

    def choose(self, sticky_value: str | None) -> Arm | None:
        """The arm whose share a request is in; None where there are none."""
        arms = self.routing.arms
        if self._split is None:
            return None
        if sticky_value is None:
            return arms[self._split.next()]
        shares = ((arm.name, arm.weight) for arm in arms)
        return self._arms[sticky_share(self._salt, sticky_value, shares)]

    def forwarder(self, arm: Arm) -> Forwarder | None:
        """The way to an arm; None to this model's own."""
        return None if arm.engine == self._own else self._forwarders[arm.engine]

    def is_shadowed(self) -> bool:
        """Whether the shadow gets a copy of the next request."""
        return self._copies is not None and self._copies.next() == 0

    def shadow_forwarder(self) -> Forwarder:
        """The way to the shadow, where there is one."""
        assert self.routing.shadow is not None
        return self._forwarders[self.routing.shadow.engine]


class Router:
    """Hands each request to its arm."""

    def __init__(
        self,
        inputs: Iterable[str],
        counts: ArmCounts,
        shadowing: Shadowing,
    ) -> None:
        """``inputs`` are the names of the tensors that the model declares."""
        self._inputs = frozenset(inputs)
        self._counts = counts
        self._shadowing = shadowing
        self._lost: set[str] = set()  # arms that are answered for; told of once
        self.is_closing = False

    def receive(self, request: Request, table: Table, here: Here) -> None:
        """Passes a request to its arm's model, or to ``here``, the own."""
        request, value = self._unstuck(request, table.routing.sticky)
        arm = table.choose(value)
        forwarder = None if arm is None else table.forwarder(arm)
        if arm is None or forwarder is None:
            self._keep(request, table, arm, here)
        else:
            self._pass_on(request, table, arm, forwarder, here)

    def _keep(self, request: Request, table: Table, arm: Arm | None, here: Here) -> None:
        """The own arm's; the shadow gets its copy after the request itself has gone on."""
        plain = self._copy(request.read) if table.is_shadowed() else None
        responder = request.responder
        if arm is not None:
            responder = CountedResponder(responder, partial(self._counts.ended, arm.name))
        here(request.read, request.listed, responder)
        shadow = table.routing.shadow
        if plain is not None and shadow is not None:
            self._shadowing.submit(
                shadow.name,
                table.shadow_forwarder(),
                plain,
                request.listed,
                may_stream=request.may_stream,
            )

    def _copy(self, read: RequestLike) -> PlainRequest:
        """With arrays that no hook of the own arm's can change meanwhile."""
        plain = read_plain(read, self._inputs)
        if plain is not read:
            return plain
        inputs = {name: array.copy() for name, array in plain.inputs.items()}
        return replace(plain, inputs=inputs)

    def _pass_on(
        self, request: Request, table: Table, arm: Arm, forwarder: Forwarder, here: Here
    ) -> None:
        # Copied: Triton's own memory ends with its request, and we may have to answer it after all.
        plain = read_plain(request.read, self._inputs)
        kept = replace(request, read=plain, listed=list(request.listed))
        passed = LinkRequest(
            plain.inputs,
            json.dumps(dict(plain.given)),
            list(kept.listed),
            plain.request_id,
            may_stream=request.may_stream,
            is_routed=True,
        )
        end = partial(self._counts.ended, arm.name)
        responder = CountedResponder(request.responder, end)
        fall_back = partial(self._fall_back, kept, table, arm, here)
        try:
            taken = forwarder.offer(passed, responder, fall_back)
        except RequestError:
            taken = False  # too large for the link, not for a model
        if not taken:
            fall_back(None)
        elif arm.name in self._lost:
            self._lost.discard(arm.name)

    def _fall_back(
        self,
        request: Request,
        table: Table,
        arm: Arm,
        here: Here,
        error: RuntimeModelError | None,
    ) -> None:
        """The own arm answers, for the other one is lost and has answered nothing."""
        self._counts.ended(arm.name, "fallback")
        if arm.name not in self._lost:
            self._lost.add(arm.name)
            log.warn(f"arm {arm.name}: {arm.engine} is not there, its requests are answered here")
        if self.is_closing:
            unloading = OverloadedError("the model is being unloaded: try again")
            request.responder.fail(error or unloading)
            return
        responder = request.responder
        if own := table.own_arm:
            responder = CountedResponder(responder, partial(self._counts.ended, own.name))
        here(request.read, request.listed, responder)

    def _unstuck(self, request: Request, sticky: str | None) -> tuple[Request, str | None]:
        """A request and the value that keeps its likes together; None where it has none.

        A parameter that is there for this alone is taken out, for no task knows it.
        """
        if sticky is None:
            return request, None
        if sticky == REQUEST_ID:
            return request, request.read.request_id or None
        tensor = request.read.tensor(sticky)
        if tensor is not None:
            values = tensor.as_numpy().reshape(-1)[:1].tolist()
            return request, _text(values[0]) if values else None
        given: dict[str, Any] = json.loads(request.read.parameters() or "{}")
        if sticky not in given:
            return request, None
        if sticky not in self._inputs:
            plain = read_plain(request.read, self._inputs)
            value = given.pop(sticky)
            return replace(request, read=replace(plain, given=given)), _text(value)
        return request, _text(given[sticky])


def _text(value: Any) -> str | None:
    """A sticky value as a text, alike as a tensor and as a parameter; None where it is empty."""
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    return text or None


def engines_of(routing: Routing | None, own: str) -> set[str]:
    """The models of Triton's that a routing leads to, other than ``own``."""
    if routing is None:
        return set()
    found = {arm.engine for arm in routing.arms}
    if routing.shadow:
        found.add(routing.shadow.engine)
    return found - {own}


def weight_of(routing: Routing | None, arm: str) -> Fraction:
    """An arm's share at the moment; 0 of one that is no longer there."""
    arms = routing.arms if routing else ()
    return next((one.weight for one in arms if one.name == arm), Fraction(0))
