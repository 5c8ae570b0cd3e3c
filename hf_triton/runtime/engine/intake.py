"""The steps before a task reads a request, each only where models.yaml asks for it: first the
arms, because each has hooks and a cache of its own; then hooks, so that they count every request;
then the response cache, whose key is the request that hooks made.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any

from hf_triton.tracing.triton import start_tracer

from .. import log
from ..errors import LoadError
from ..hooking.hook_runner import Functions, HookFile, HookRunner
from ..link.listener import EngineListener
from ..metrics.observations import Metric, Observations
from ..metrics.publishing import Family, MetricsPublisher
from ..request.declared_tensor import declared_tensors
from ..request.request import Request
from ..request.responder import EndingResponder, attempt
from ..request.response_cache import ResponseCache
from ..routing.router import Router
from ..weights.served_model import ServedModel

HOOKS_FILE = "hooks.py"
CLOSE_S = 5.0
_MIB = 2**20
Collector = Callable[[], Iterable[Family]]


class Intake:
    """Made before the weights are loaded, so that a bad hooks file shows at once."""

    def __init__(
        self,
        served: ServedModel,
        args: Mapping[str, str],
        pb_utils: Any,
        methods: Functions = MappingProxyType({}),
    ) -> None:
        """``methods`` are the hooks that model.py has. Raises LoadError for a hooks file."""
        config = json.loads(args["model_config"])
        self._inputs = declared_tensors(config["input"])
        self._observations = Observations(Metric(n, **told) for n, told in served.metrics.items())
        self._hooking: HookRunner | None = None
        self._steps: list[Callable[..., None]] = []  # the last one gets a request first
        self._collectors: list[Collector] = []
        if served.response_cache_mib is not None:
            cache = ResponseCache(served.response_cache_mib * _MIB)
            self._steps.append(cache.receive)
            self._collectors.append(cache.families)
        file = self._hook_file(served, args["model_version"], methods)
        if file is not None:
            outputs = declared_tensors(config["output"])
            batched = served.max_batch_size > 0
            self._hooking = HookRunner(file, self._inputs, outputs, batched=batched)
            self._steps.append(self._hooking.receive)
        self._take: Callable[[Request], None]
        self.listener: EngineListener | None = None
        self.router = Router(served, self._inputs)
        self._collectors.append(self.router.families)
        self._served, self._args, self._pb_utils = served, args, pb_utils
        self._tracer = start_tracer(served.public_name, served.task, log.warn)
        self._steps.append(self._follow)
        self._publishers: list[MetricsPublisher] = []

    def _hook_file(self, served: ServedModel, version: str, methods: Functions) -> HookFile | None:
        if served.hooks is None and not methods:
            return None
        if served.hooks is not None and methods:
            both = f"model.py has {' and '.join(methods)}, and models.yaml names {served.hooks}"
            raise LoadError(f"hooks: {both}: keep one of the two")
        if methods and served.role != "whole":
            raise LoadError(f"hooks: a step of an ensemble ({served.role}) can't have any")
        path = served.folder / version / (HOOKS_FILE if served.hooks else "model.py")
        code = getattr(next(iter(methods.values()), None), "__code__", None)
        path = Path(code.co_filename) if code else path
        name = served.hooks or path.name
        return HookFile(path, name, self._observations, methods)

    def _follow(self, request: Request, pass_on: Callable[[Request], None]) -> None:
        """Sends the spans of a traced request when it is answered."""
        if self._tracer is None or request.trace is None:
            pass_on(request)
            return
        ended = partial(self._tracer.send, request.trace, is_chat="messages" in request.inputs)
        responder = EndingResponder(request.responder, ended)
        attempt(responder, pass_on, replace(request, responder=responder))

    def open(self, take: Callable[[Request], None], *families: Collector) -> None:
        """After the weights are loaded: ``take`` gets what the hooks made of each request, now or
        from another thread, unless its answer is known or another arm's. From here on its own
        metrics and ``families`` are published; a whole model also takes requests of other processes
        and follows routing.json.
        """
        for step in self._steps:
            take = partial(step, pass_on=take)
        self._take = take
        served = self._served
        is_whole = served.role == "whole"  # only Triton calls an ensemble's steps
        labels = {
            "model": served.public_name if is_whole else served.name,
            "version": self._args["model_version"],
            "instance": self._args["model_instance_name"],
        }
        publish = partial(MetricsPublisher, self._pb_utils, labels)
        collectors = (*self._collectors, *families)
        self._publishers = [publish(lambda: chain.from_iterable(one() for one in collectors))]
        if served.metrics:  # apart: one that Triton refuses ends no others
            self._publishers.append(publish(self._observations.families))
        if is_whole:
            self.listener = EngineListener(served.name, self.receive)
            self.router.start()

    def receive(self, request: Request) -> None:
        """Raises what is wrong with a request."""
        routing = self.router.routing
        if routing is None or request.is_routed:
            self._take(request)
        else:
            self.router.receive(routing, request, self._take)

    def drain(self, timeout_s: float) -> None:
        """Takes no more from other processes; waits for other arms' answers and for hooks."""
        deadline_s = time.monotonic() + timeout_s
        if self.listener is not None:
            self.listener.drain()
        self.router.drain(timeout_s)
        if self._hooking is not None:
            self._hooking.drain(max(0.0, deadline_s - time.monotonic()))

    def close(self) -> None:
        """After the engine has stopped: sends what hooks still hold, and ends every thread."""
        self.router.close()
        if self._hooking is not None:
            self._hooking.close(CLOSE_S)
        if self.listener is not None:
            self.listener.close()
        for publisher in self._publishers:
            publisher.close()
        if self._tracer:
            self._tracer.close()
