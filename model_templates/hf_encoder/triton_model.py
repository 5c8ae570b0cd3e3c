"""Triton's side of every encoder task: loads the engine, and hands every request on to it.

``execute`` returns at once; answers are sent from other threads. So requests of any number of
calls share the engine's steps. A task's model.py fills in its options and its task.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any, ClassVar

import torch
import triton_python_backend_utils as pb_utils
from hf_runtime import log
from hf_runtime.devices import device
from hf_runtime.engine.intake import Intake
from hf_runtime.errors import LoadError
from hf_runtime.link.listener import ForwardedRequest
from hf_runtime.metrics.publishing import MetricsPublisher, instance_labels
from hf_runtime.request.plain_request import DirectRequest, read_plain
from hf_runtime.request.responder import TritonResponder
from hf_runtime.weights.served_model import read_served_model

from .engine.metrics import families
from .ensemble.roles import load_part
from .options import EncoderOptions
from .reception import Reception
from .task import EncoderTask

# As in text generation: the engine's thread shares the interpreter with those that tokenise.
_SWITCH_INTERVAL_S = 0.0005


class EncoderModel:
    """One instance of a served model."""

    options_class: ClassVar[type[EncoderOptions]]
    task_class: ClassVar[type[EncoderTask]]

    def initialize(self, args: dict[str, str]) -> None:
        """Loads weights, tokenizer and engine; raises one readable line where that fails."""
        # Parallel work belongs to the engine's thread alone, see engine.py.
        torch.set_num_threads(1)
        sys.setswitchinterval(_SWITCH_INTERVAL_S)
        started = time.monotonic()
        name = args["model_name"]
        log.begin(name)
        try:
            self._load(args)
        except LoadError as error:
            log.error(f"{name}: {error}")
            raise pb_utils.TritonModelException(f"{name}: {error}") from None
        seconds = time.monotonic() - started
        log.info(f"{name}: {self.loaded.description}, loaded in {seconds:.1f} s")

    def _load(self, args: dict[str, str]) -> None:
        served = read_served_model(Path(args["model_repository"]), args["model_version"])
        self.intake = Intake(served, args, pb_utils)
        model_config = json.loads(args["model_config"])
        self.inputs = [tensor["name"] for tensor in model_config["input"]]
        kind, device_id = args["model_instance_kind"], args["model_instance_device_id"]
        placement = device.placement(kind, device_id, served.device_map)
        self.options = options = self.options_class(**served.options)
        self.loaded = loaded = load_part(
            served,
            options,
            self.task_class,
            placement,
            device.cpu_threads(model_config),
        )
        self.reception = reception = Reception(
            loaded.task,
            loaded.engine,
            max_queue_size=options.max_queue_size,
            num_tokenizer_threads=options.num_tokenizer_threads,
            batched=served.max_batch_size > 0,
        )
        name = served.public_name if served.role == "whole" else served.name
        metrics = loaded.engine.metrics
        self.metrics = MetricsPublisher(
            pb_utils,
            instance_labels(name, args),
            lambda: families(metrics, lambda: reception.num_open),
        )
        if served.role == "whole":  # an ensemble's steps are asked by Triton alone
            self.intake.open(self._take_forwarded)

    def execute(self, requests: list[Any]) -> None:
        """Takes the requests' response senders; they are answered from other threads."""
        for request in requests:
            plain = read_plain(DirectRequest(request, pb_utils), self.inputs)
            listed = request.requested_output_names()
            responder = TritonResponder(request, pb_utils)
            self.intake.receive(plain, listed, responder, self.reception.take)

    def _take_forwarded(self, request: ForwardedRequest) -> None:
        """Takes a request that a model whose arm this is has passed on."""
        plain = read_plain(request, self.inputs)
        listed = request.requested_output_names()
        take, is_routed = self.reception.take, request.is_routed
        self.intake.receive(plain, listed, request.responder, take, is_routed=is_routed)

    def is_ready(self) -> bool:
        """Whether requests get on; asked by servers from 26.04 on."""
        return self.loaded.engine.is_healthy

    def finalize(self) -> None:
        """Lets what runs finish within ``unload_grace_s``, answers the rest with UNAVAILABLE, and
        ends every thread.
        """
        if not hasattr(self, "reception"):
            return
        deadline_s = time.monotonic() + self.options.unload_grace_s
        self.intake.drain(self.options.unload_grace_s)
        self.reception.drain(max(0.0, deadline_s - time.monotonic()))
        self.loaded.engine.stop()
        self.reception.close()
        self.intake.close()
        self.metrics.close()
