"""Triton's side of text generation: loads the engine, and hands every request on to it.

``execute`` returns at once: every request's response sender goes with its sequences to the engine,
and answers are sent from the engine's side. So requests join a running batch at every step, on
decoupled models and on ordinary ones.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import hf_runtime  # noqa: F401, before torch: it says how torch's threads wait
import torch
import triton_python_backend_utils as pb_utils
from hf_runtime import log
from hf_runtime.devices import device
from hf_runtime.engine.intake import Intake
from hf_runtime.errors import LoadError
from hf_runtime.link.listener import ForwardedRequest
from hf_runtime.metrics.publishing import MetricsPublisher, instance_labels
from hf_runtime.request.plain_request import DirectRequest, RequestLike, tensor_of
from hf_runtime.request.responder import Responder, TritonResponder
from hf_runtime.request.tensors import RequestFields
from hf_runtime.weights.served_model import read_served_model

from .engine.metrics import families
from .loading import load_engine
from .reception import Reception

# The engine's thread shares the interpreter with those that read, decode and send. Python's own
# 5 ms would let each of them hold up a step: 5 to 11 % fewer tokens/s at 32 clients on 2 cores.
_SWITCH_INTERVAL_S = 0.0005


class TritonPythonModel:
    """One instance of a served model. A task with options of its own has a ``load`` of its own."""

    load = staticmethod(load_engine)

    def initialize(self, args: dict[str, str]) -> None:
        """Loads weights, tokenizer and engine; raises one readable line where that fails."""
        # Parallel work belongs to the engine's thread alone, see engine.py.
        torch.set_num_threads(1)
        sys.setswitchinterval(_SWITCH_INTERVAL_S)
        started = time.monotonic()
        name = args["model_name"]
        log.begin(name)
        try:
            served = read_served_model(Path(args["model_repository"]), args["model_version"])
            self.intake = Intake(served, args, pb_utils)
            model_config = json.loads(args["model_config"])
            placement = device.placement(
                args["model_instance_kind"], args["model_instance_device_id"], served.device_map
            )
            self.loaded = self.load(served, placement, device.cpu_threads(model_config))
        except LoadError as error:
            log.error(f"{name}: {error}")
            raise pb_utils.TritonModelException(f"{name}: {error}") from None
        self.decoupled = served.decoupled
        self.batched = served.max_batch_size > 0
        self.reception = Reception(self.loaded, batched=self.batched)
        labels = instance_labels(served.public_name, args)
        engine = self.loaded.engine
        self.metrics = MetricsPublisher(pb_utils, labels, lambda: families(engine))
        self.intake.open(self._take_forwarded)
        seconds = time.monotonic() - started
        log.info(f"{name}: {self.loaded.description}, loaded in {seconds:.1f} s")

    def execute(self, requests: list[Any]) -> None:
        """Takes the requests' response senders; they are answered from other threads."""
        take = partial(self._take, may_stream=self.decoupled)
        for request in requests:
            self.intake.receive(
                DirectRequest(request, pb_utils),
                request.requested_output_names(),
                TritonResponder(request, pb_utils),
                take,
                may_stream=self.decoupled,
            )

    def is_ready(self) -> bool:
        """Whether requests get on; asked by servers from 26.04 on."""
        return self.loaded.engine.is_healthy

    def finalize(self) -> None:
        """Lets what runs finish within ``unload_grace_s``, answers the rest with UNAVAILABLE, and
        ends every thread.
        """
        if not hasattr(self, "loaded"):
            return
        self.intake.drain(self.loaded.unload_grace_s)
        self.loaded.engine.stop(self.loaded.unload_grace_s)
        self.reception.close()
        self.intake.close()
        self.metrics.close()

    def _take_forwarded(self, request: ForwardedRequest) -> None:
        """Takes a request that a front, or a model whose arm this is, has passed on."""
        self.intake.receive(
            request,
            request.requested_output_names(),
            request.responder,
            partial(self._take, may_stream=request.may_stream),
            may_stream=request.may_stream,
            is_routed=request.is_routed,
        )

    def _take(
        self, request: RequestLike, listed: Iterable[str], responder: Responder, *, may_stream: bool
    ) -> None:
        fields = RequestFields(request, tensor_of, batched=self.batched)
        self.reception.take(fields, listed, responder, may_stream=may_stream)
