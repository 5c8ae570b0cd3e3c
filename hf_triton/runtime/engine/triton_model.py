"""The Triton model of every task: loads a model, and passes every request to its Serving. The
task's options name the function that loads it, LOAD, and the class that serves it, SERVE.

``execute`` returns at once: answers are sent from other threads through each request's response
sender. So requests of any number of calls share an engine's steps. Heavy imports happen in
``initialize``, which reports missing packages in one line.
"""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, NoReturn, Protocol

import triton_python_backend_utils as pb_utils

from hf_triton.runtime import collect_normally, log, own_environment
from hf_triton.runtime.engine.first_request import try_one
from hf_triton.runtime.engine.intake import Intake
from hf_triton.runtime.errors import LoadError
from hf_triton.runtime.heartbeat import Heartbeat
from hf_triton.runtime.hooking.hook_runner import functions_of
from hf_triton.runtime.metrics.publishing import Family, Sample, one_number
from hf_triton.runtime.request.request import Request, take_each
from hf_triton.runtime.weights.served_model import read_served_model

_MEMORY = "hf_triton_memory_bytes"
_MEMORY_HELP = "Memory that a model took when it was loaded, and that is free, by device"
_SECONDS_HELP = "Time that the load of a model took, the start of its process too"
# A process' GPU memory beside torch's tensors: the CUDA context, its kernels, cuBLAS.
_CONTEXT_BYTES = 512 * 2**20
_STEP = 64 * 2**20  # rounding of free memory, so that it does not change every second


class Serving(Protocol):
    """A loaded model that answers requests. ``description`` is its line for the log: the model and
    its device; ``is_healthy``: requests make progress; ``tokenizer`` is None without texts.
    """

    description: str
    unload_grace_s: float
    tokenizer: Any

    @property
    def is_healthy(self) -> bool: ...

    def families(self) -> Iterable[Family]:
        """All metrics; called from the metrics thread."""

    def take(self, request: Request) -> None:
        """Starts one request. An exception becomes its answer."""

    def stop(self, grace_s: float) -> None:
        """Finishes what is here within ``grace_s``, answers the rest with UNAVAILABLE."""


class TritonModel:
    """A model.py may add ``preprocess`` and ``postprocess``, as a hooks file has them."""

    def initialize(self, args: dict[str, str]) -> None:
        started_s = time.monotonic()
        name = args["model_name"]
        log.begin(name)
        folder = Path(args["model_repository"], args["model_version"])
        try:
            own_environment.check(folder)
            self._start(args)
        except ImportError as error:
            self._refuse(f"{name}: {own_environment.lacks(folder, error)}")
        except LoadError as error:
            self._refuse(f"{name}: {error}")
        self.heartbeat = Heartbeat(self.is_ready)
        seconds = time.monotonic() - started_s
        log.info(f"{name}: {self.serving.description}, loaded in {seconds:.1f} s")

    def _refuse(self, line: str) -> NoReturn:
        log.error(line)
        raise pb_utils.TritonModelException(line) from None

    def _start(self, args: dict[str, str]) -> None:
        import torch

        from hf_triton.runtime.devices import device

        served = read_served_model(Path(args["model_repository"]), args["model_version"])
        options = resolve_name(f"hf_triton.{served.task.replace('-', '_')}.options:Options")
        load = resolve_name(f"hf_triton.{options.LOAD}")
        reception = resolve_name(f"hf_triton.{options.SERVE}")
        collect_normally()  # imported modules stay in memory
        torch.set_num_threads(1)  # parallel work belongs to the engine's thread alone
        self.intake = Intake(served, args, pb_utils, functions_of(self))
        self.decoupled = served.decoupled
        config = json.loads(args["model_config"])
        if other_release := own_environment.other_release(config.get("parameters", {})):
            log.warn(f"{args['model_name']}: {other_release}")
        kind, device_id = args["model_instance_kind"], args["model_instance_device_id"]
        placement = device.placement(kind, device_id, served.device_map)
        inputs, outputs = (tuple(t["name"] for t in config[side]) for side in ("input", "output"))
        loaded = load(served, placement, device.cpu_threads(config))
        self.serving: Serving = reception(loaded, batched=served.max_batch_size > 0)
        try:
            try_one(self.serving, served, inputs, outputs)
        except LoadError:
            self.serving.stop(0.0)
            raise
        gc.collect()
        device.trim_heap()
        self.load_metrics = LoadMetrics()
        self.intake.open(self.serving.take, self.serving.families, self.load_metrics.families)

    def execute(self, requests: list[Any]) -> None:
        """Takes the requests' response senders; other threads answer."""
        take_each(requests, pb_utils, self.intake.receive, may_stream=self.decoupled)

    def is_ready(self) -> bool:
        """True while requests make progress; called by servers from 26.03 on."""
        return self.serving.is_healthy

    def finalize(self) -> None:
        """Finishes what runs within ``unload_grace_s``, answers the rest with UNAVAILABLE."""
        if not hasattr(self, "heartbeat"):
            return
        deadline_s = time.monotonic() + self.serving.unload_grace_s
        self.intake.drain(self.serving.unload_grace_s)
        self.serving.stop(max(0.0, deadline_s - time.monotonic()))
        self.intake.close()
        self.heartbeat.stop()


class LoadMetrics:
    """Made when a model is loaded. ``seconds`` have passed since its process began; ``held`` are
    the bytes by device that the process has by then: on a GPU all that torch has reserved, the
    cache of keys and values too; on the CPU what it shares with no file, and nothing of such a
    cache, which is taken as it is written.
    """

    def __init__(self) -> None:
        import psutil
        import torch

        process = psutil.Process()
        self.seconds = time.time() - process.create_time()
        own = process.memory_info()
        self.held = {"cpu": int(own.rss - own.shared)}
        for index in range(torch.cuda.device_count()):
            if reserved := torch.cuda.memory_reserved(index):
                self.held[f"cuda:{index}"] = int(reserved) + _CONTEXT_BYTES

    def families(self) -> Iterator[Family]:
        import torch

        from hf_triton.runtime.devices.device import free_bytes

        samples = []
        for device, held in self.held.items():
            free = free_bytes(torch.device(device)) // _STEP * _STEP
            samples.append(Sample({"device": device, "kind": "loaded"}, float(held)))
            samples.append(Sample({"device": device, "kind": "free"}, float(free)))
        yield Family(_MEMORY, _MEMORY_HELP, False, tuple(samples))
        yield one_number("hf_triton_load_seconds", _SECONDS_HELP, self.seconds)
