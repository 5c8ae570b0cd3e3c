"""Triton's side of a pipeline: loads it, and hands every request on to it.

``execute`` returns at once; answers are sent from other threads.
"""

from __future__ import annotations

import json
import time
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
from hf_runtime.request.plain_request import DirectRequest
from hf_runtime.request.responder import TritonResponder
from hf_runtime.weights.served_model import read_served_model

from .pipeline_metrics import families
from .serving import ServedPipeline, serve_pipeline


class TritonPythonModel:
    """One instance of a served model."""

    def initialize(self, args: dict[str, str]) -> None:
        """Loads the pipeline; raises one readable line where that fails."""
        # Parallel work belongs to the engine's thread alone, see engine.py.
        torch.set_num_threads(1)
        started = time.monotonic()
        name = args["model_name"]
        log.begin(name)
        try:
            self._load(args)
        except LoadError as error:
            log.error(f"{name}: {error}")
            raise pb_utils.TritonModelException(f"{name}: {error}") from None
        seconds = time.monotonic() - started
        log.info(f"{name}: {self.pipeline.description}, loaded in {seconds:.1f} s")

    def _load(self, args: dict[str, str]) -> None:
        served = read_served_model(Path(args["model_repository"]), args["model_version"])
        self.intake = Intake(served, args, pb_utils)
        kind, device_id = args["model_instance_kind"], args["model_instance_device_id"]
        placement = device.placement(kind, device_id, served.device_map)
        num_threads = device.cpu_threads(json.loads(args["model_config"]))
        self.pipeline: ServedPipeline = serve_pipeline(served, placement, num_threads)
        labels = instance_labels(served.public_name, args)
        self.metrics = MetricsPublisher(pb_utils, labels, self._families)
        self.intake.open(self._take_forwarded)

    def execute(self, requests: list[Any]) -> None:
        """Takes the requests' response senders; they are answered from other threads."""
        for request in requests:
            direct = DirectRequest(request, pb_utils)
            listed = request.requested_output_names()
            responder = TritonResponder(request, pb_utils)
            self.intake.receive(direct, listed, responder, self.pipeline.reception.take)

    def _take_forwarded(self, request: ForwardedRequest) -> None:
        """Takes a request that a model whose arm this is has passed on."""
        listed = request.requested_output_names()
        take, is_routed = self.pipeline.reception.take, request.is_routed
        self.intake.receive(request, listed, request.responder, take, is_routed=is_routed)

    def is_ready(self) -> bool:
        """Whether requests get on; asked by servers from 26.04 on."""
        return self.pipeline.engine.is_healthy

    def finalize(self) -> None:
        """Lets what runs finish within ``unload_grace_s``, answers the rest with UNAVAILABLE, and
        ends every thread.
        """
        if not hasattr(self, "metrics"):
            return
        deadline_s = time.monotonic() + self.pipeline.unload_grace_s
        self.intake.drain(self.pipeline.unload_grace_s)
        self.pipeline.stop(max(0.0, deadline_s - time.monotonic()))
        self.intake.close()
        self.metrics.close()

    def _families(self) -> Any:
        engine, reception = self.pipeline.engine, self.pipeline.reception
        running = engine.num_running
        waiting = max(0, reception.num_open - running)
        return families(engine.metrics, running=running, waiting=waiting)
