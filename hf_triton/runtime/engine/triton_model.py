"""The Triton model of every task: loads a model, and passes every request to its Serving.

``execute`` returns at once: answers are sent from other threads through each request's response
sender. So requests of any number of calls share an engine's steps, on decoupled models and on
ordinary ones. A task's class names its Serving. Heavy imports happen in ``initialize``, which
reports missing packages in one line; earlier failures show as a traceback in Triton.
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import triton_python_backend_utils as pb_utils

from hf_triton.runtime import collect_normally, log, own_environment
from hf_triton.runtime.engine.first_request import try_one
from hf_triton.runtime.engine.intake import Intake
from hf_triton.runtime.errors import LoadError
from hf_triton.runtime.heartbeat import Heartbeat
from hf_triton.runtime.hooking.hook_file import functions_of
from hf_triton.runtime.link.listener import ForwardedRequest
from hf_triton.runtime.metrics.publishing import (
    Family,
    MetricsPublisher,
    Sample,
    instance_labels,
    one_number,
    settled,
)
from hf_triton.runtime.request.plain_request import DirectRequest, RequestLike
from hf_triton.runtime.request.responder import Responder, TritonResponder
from hf_triton.runtime.weights.served_model import ServedModel, read_served_model

if TYPE_CHECKING:
    from hf_triton.runtime.devices.device import Placement

_MEMORY = "hf_triton_memory_bytes"
_MEMORY_HELP = "Memory that a model took when it was loaded, and that is free, by device"
_SECONDS_HELP = "Time that the load of a model took, the start of its process too"
# What a process takes of a GPU beside torch's tensors: the CUDA context, its kernels, cuBLAS.
_CONTEXT_BYTES = 512 * 2**20
_STEP = 64 * 2**20  # rounding of free memory, so that it does not change every second


@dataclass(frozen=True)
class Instance:
    """The configuration of one instance; ``inputs`` are the names of its tensors."""

    served: ServedModel
    placement: Placement
    num_threads: int
    inputs: tuple[str, ...]


class Serving(Protocol):
    """A loaded model that answers requests. ``description`` is its line for the log."""

    @property
    def description(self) -> str:
        """The model and its device."""

    @property
    def unload_grace_s(self) -> float:
        """Seconds that requests may continue during unload."""

    @property
    def is_healthy(self) -> bool:
        """Whether requests make progress."""

    @property
    def tokenizer(self) -> Any:
        """The model's tokenizer; None without texts."""

    def families(self) -> Iterable[Family]:
        """All metrics; called from the metrics thread."""

    def take(
        self, request: RequestLike, listed: Iterable[str], responder: Responder, *, may_stream: bool
    ) -> None:
        """Starts one request, or answers it with its error; never raises. The request is not read
        after this returns. ``listed`` are the outputs that it names; ``may_stream`` is False where
        its caller can be answered only once.
        """

    def stop(self, grace_s: float) -> None:
        """Takes no more, finishes what is here within ``grace_s``, answers the rest with
        UNAVAILABLE, and ends every thread.
        """


# Loads a model and starts its engine. Raises LoadError: the line that an operator reads.
Loader = Callable[[Instance], Serving]


def serve(
    load: Callable[[ServedModel, Placement, int], Any],
    reception: Callable[..., Serving],
    instance: Instance,
) -> Serving:
    """A Loader that connects the result of ``load`` to its ``reception``."""
    served = instance.served
    loaded = load(served, instance.placement, instance.num_threads)
    return reception(loaded, batched=served.max_batch_size > 0)


class TritonModel(ABC):
    """One instance of a served model. A model.py may add the methods ``preprocess`` and
    ``postprocess``: they are called as those of a hooks file are.
    """

    @abstractmethod
    def loader(self) -> Loader:
        """Imports the model's code and returns the function that loads it."""

    def initialize(self, args: dict[str, str]) -> None:
        """Starts serving; a failure is raised as one readable line."""
        started_s = time.monotonic()
        name = args["model_name"]
        log.begin(name)
        folder = Path(args["model_repository"], args["model_version"])
        try:
            own_environment.check(folder)
            self._start(args)
        except ImportError as error:
            self._refuse(name, own_environment.lacks(folder, error))
        except LoadError as error:
            self._refuse(name, str(error))
        self.heartbeat = Heartbeat(self.is_ready)
        seconds = time.monotonic() - started_s
        log.info(f"{name}: {self.serving.description}, loaded in {seconds:.1f} s")

    def _refuse(self, name: str, reason: str) -> None:
        log.error(f"{name}: {reason}")
        raise pb_utils.TritonModelException(f"{name}: {reason}") from None

    def _start(self, args: dict[str, str]) -> None:
        import torch

        from hf_triton.runtime.devices import device

        load = self.loader()
        collect_normally()  # imported modules stay in memory
        torch.set_num_threads(1)  # parallel work belongs to the engine's thread alone
        served = read_served_model(Path(args["model_repository"]), args["model_version"])
        self.intake = Intake(served, args, pb_utils, functions_of(self))
        self.decoupled = served.decoupled
        config = json.loads(args["model_config"])
        if told := own_environment.other_release(config.get("parameters", {})):
            log.warn(f"{args['model_name']}: {told}")
        kind, device_id = args["model_instance_kind"], args["model_instance_device_id"]
        placement = device.placement(kind, device_id, served.device_map)
        inputs, outputs = (
            tuple(tensor["name"] for tensor in config[kind]) for kind in ("input", "output")
        )
        self.serving = load(Instance(served, placement, device.cpu_threads(config), inputs))
        try:
            try_one(self.serving, served, inputs, outputs)
        except LoadError:
            self.serving.stop(0.0)
            raise
        device.release_freed_memory()
        self.load_metrics = LoadMetrics()
        is_whole = served.role == "whole"
        labels = instance_labels(served.public_name if is_whole else served.name, args)
        uncounted = settled(self.serving.families)
        self.metrics = MetricsPublisher(pb_utils, labels, self._families, uncounted)
        if is_whole:  # only Triton calls an ensemble's steps
            self.intake.open(self._take_forwarded)

    def _families(self) -> Iterator[Family]:
        yield from self.serving.families()
        yield from self.load_metrics.families()

    def execute(self, requests: list[Any]) -> None:
        """Takes the requests' response senders; other threads answer."""
        for request in requests:
            self._receive(
                DirectRequest(request),
                request.requested_output_names(),
                TritonResponder(request, pb_utils, decoupled=self.decoupled),
                may_stream=self.decoupled,
            )

    def is_ready(self) -> bool:
        """Whether requests make progress; called by servers from 26.03 on."""
        return self.serving.is_healthy

    def finalize(self) -> None:
        """Lets what runs finish within ``unload_grace_s``, answers the rest with UNAVAILABLE, and
        ends every thread.
        """
        if not hasattr(self, "metrics"):
            return
        deadline_s = time.monotonic() + self.serving.unload_grace_s
        self.intake.drain(self.serving.unload_grace_s)
        self.serving.stop(max(0.0, deadline_s - time.monotonic()))
        self.intake.close()
        self.metrics.close()
        self.heartbeat.stop()

    def _take_forwarded(self, request: ForwardedRequest) -> None:
        """Takes a request that a front, or a model that routes to this arm, has forwarded."""
        self._receive(
            request,
            request.outputs,
            request.responder,
            may_stream=request.may_stream,
            is_routed=request.is_routed,
        )

    def _receive(
        self,
        request: RequestLike,
        listed: Iterable[str],
        responder: Responder,
        *,
        may_stream: bool,
        is_routed: bool = False,
    ) -> None:
        take = partial(self.serving.take, may_stream=may_stream)
        self.intake.receive(
            request, listed, responder, take, may_stream=may_stream, is_routed=is_routed
        )


class LoadMetrics:
    """Made when a model is loaded. ``seconds`` have passed since its process began; ``held`` are
    the bytes by device that the process has by then: on a GPU all that torch has reserved, the
    cache of keys and values too; on the CPU what it shares with no file, and nothing of such a
    cache, which is taken as it is written.
    """

    def __init__(self) -> None:
        import psutil

        self.seconds = time.time() - psutil.Process().create_time()
        self.held = held_bytes()

    def families(self) -> Iterator[Family]:
        """As Prometheus names them; may be read from any thread."""
        import torch

        from hf_triton.runtime.devices.device import free_bytes

        samples = []
        for device, held in self.held.items():
            free = free_bytes(torch.device(device)) // _STEP * _STEP
            samples.append(Sample({"device": device, "kind": "loaded"}, float(held)))
            samples.append(Sample({"device": device, "kind": "free"}, float(free)))
        yield Family(_MEMORY, _MEMORY_HELP, False, tuple(samples))
        yield one_number("hf_triton_load_seconds", _SECONDS_HELP, self.seconds)


def held_bytes() -> dict[str, int]:
    import psutil
    import torch

    own = psutil.Process().memory_info()
    held = {"cpu": int(own.rss - own.shared)}
    for index in range(torch.cuda.device_count()):
        reserved = torch.cuda.memory_reserved(index)
        if reserved:
            held[f"cuda:{index}"] = int(reserved) + _CONTEXT_BYTES
    return held
