"""What each server gets: image, GPUs, memory, shared memory, storage, and its files.

Holds flags against the models; every combination that can't work is refused here. Knows no target.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from generator.deploy.models_file import Source
from generator.deploy.options import Options
from generator.deploy.units import Unit, num_instances
from generator.errors import UsageError
from generator.render.memory import weight_bytes
from generator.render.model_data import model_values
from generator.spec import vllm_arguments
from generator.spec.model_spec import ModelSpec
from generator.spec.task_sets import COMPLETION_TASKS, SPEECH_TASKS
from generator.spec.triton_models import triton_models

_GIB = 1024  # in MiB
_BASE_MEMORY_MIB = 2 * _GIB
_MEMORY_PER_PROCESS_MIB = _GIB  # torch and transformers alone hold 0.4
_SHM_PER_PROCESS_MIB = 64
_LEAST_SHM_MIB = 256
_SHM_PER_GPU_MIB = _GIB  # through which the GPUs of one node talk, where they have no link
_UNKNOWN_STORAGE_MIB = 20 * _GIB
_SPARE_STORAGE = 1.5  # a new revision is fetched while the old one is still there

_WAITING_TASKS = (*COMPLETION_TASKS, *SPEECH_TASKS, "pipeline")


@dataclass(frozen=True)
class Server:
    """One unit's needs; sizes in MiB."""

    unit: Unit
    files: Mapping[str, bytes]
    image: str
    gpus: int
    cpu: str
    memory_mib: int
    shm_mib: int
    storage_mib: int

    @property
    def name(self) -> str:
        """The name of its objects in a cluster."""
        return self.unit.name

    @property
    def memory(self) -> str:
        return quantity(self.memory_mib)

    @property
    def shm(self) -> str:
        return quantity(self.shm_mib)

    @property
    def storage(self) -> str:
        return quantity(self.storage_mib)

    @property
    def num_threads(self) -> str:
        """The most threads of each computation: its cores, and not all of the machine's, which is
        what processes see where no quota is set.
        """
        return str(max(1, int(float(self.cpu))))

    @property
    def has_environments(self) -> bool:
        """Whether any of its models has a Python environment that hf-triton builds."""
        return any(spec.python_env and spec.python_env.files for spec in self.unit.specs)

    @property
    def has_waiting(self) -> bool:
        """Whether any of its models counts the requests that wait."""
        return bool(self.unit.tasks.intersection(_WAITING_TASKS))

    @property
    def has_open(self) -> bool:
        """Whether any of its models counts the requests that it works on: encoders."""
        return bool(self.unit.tasks.difference(_WAITING_TASKS))


def quantity(mib: int) -> str:
    """``8Gi``, or ``1536Mi``."""
    return f"{mib // _GIB}Gi" if mib % _GIB == 0 else f"{mib}Mi"


def device_of(units: list[Unit], args: Options) -> str:
    """``gpu`` or ``cpu``. Raises UsageError where the flags forbid what models.yaml asks for."""
    able = any(unit.can_use_gpu for unit in units)
    device = str(args.device or ("gpu" if able and args.gpus != 0 else "cpu"))
    if device == "cpu":
        bound = [spec.name for unit in units for spec in unit.specs if _is_bound_to_gpu(spec)]
        if args.gpus:
            raise UsageError(f"--device cpu with --gpus {args.gpus}: leave one of them out")
        if bound:
            raise UsageError(
                f"without GPUs (--device cpu, or --gpus 0), but instance groups of "
                f"{_list(bound)} are KIND_GPU: leave the flag out, or change them"
            )
    elif args.gpus == 0:
        raise UsageError("--device gpu with --gpus 0: leave one of them out")
    return device


def server_of(unit: Unit, source: Source, device: str, args: Options) -> Server:
    """The server of a unit. Raises UsageError."""
    gpus = _gpus(unit, device, args)
    shm_mib = args.shm_size or _shared_memory(unit, gpus)
    if args.memory is not None and args.memory <= shm_mib:
        raise UsageError(
            f"got --memory {quantity(args.memory)}, which has to hold shared memory too, of which "
            f"{_list(unit.names)} get {quantity(shm_mib)}: give more, or a smaller --shm-size"
        )
    return Server(
        unit=unit,
        files=source.files_of(unit),
        image=args.image or f"hf-triton:{device}",
        gpus=gpus,
        cpu=args.cpu,
        memory_mib=args.memory or _memory(unit, shm_mib, gpus),
        shm_mib=shm_mib,
        storage_mib=args.storage_size or _storage(unit),
    )


def _gpus(unit: Unit, device: str, args: Options) -> int:
    if device == "cpu" or not unit.can_use_gpu:
        return 0
    asked, named = args.gpus, len(unit.gpu_ids)
    if asked is not None and asked < named:
        raise UsageError(
            f"got --gpus {asked}, but the instance groups of {_list(unit.names)} name {named} GPUs"
        )
    spread, most = max_gpus(unit), args.gpus_per_node
    if spread > most:
        raise UsageError(
            f"options.vllm of {_list(unit.names)} asks for {spread} GPUs, of which a node has "
            f"{most} (--gpus-per-node): for one model over several nodes use vLLM's own Helm chart"
        )
    if asked is not None and asked < spread:
        raise UsageError(
            f"got --gpus {asked}, but options.vllm of {_list(unit.names)} asks for {spread} GPUs"
        )
    return asked or max(named, spread)


def _shared_memory(unit: Unit, gpus: int) -> int:
    between_gpus = _SHM_PER_GPU_MIB * gpus if max_gpus(unit) > 1 else 0
    requests = max(_LEAST_SHM_MIB, _SHM_PER_PROCESS_MIB * (1 + unit.num_processes))
    return requests + between_gpus


def _memory(unit: Unit, shm_mib: int, gpus: int) -> int:
    """Shared memory counts as the container's."""
    weights = sum(_weights_mib(spec, gpus) for spec in unit.specs)
    wanted = _BASE_MEMORY_MIB + unit.num_processes * _MEMORY_PER_PROCESS_MIB + weights + shm_mib
    return math.ceil(wanted / _GIB) * _GIB


def _weights_mib(spec: ModelSpec, gpus: int) -> int:
    """Of all copies: they pass through memory on their way to a GPU."""
    nowhere, engine = Path("model_repository"), triton_models(spec)[-1]
    values = model_values(engine, nowhere)
    size = weight_bytes(nowhere / engine.name, values, on_gpu=gpus > 0)
    return math.ceil(size * num_instances(engine.instance_groups) / 2**20)


def _storage(unit: Unit) -> int:
    parts = [part for spec in unit.specs for part in spec.parts if not part.source.is_local]
    sizes = [part.locked.size if part.locked else 0 for part in parts]
    if not sizes or not all(sizes):
        return _UNKNOWN_STORAGE_MIB
    return math.ceil((sum(sizes) / 2**20 * _SPARE_STORAGE + _GIB) / _GIB) * _GIB


def unknown_weights(unit: Unit) -> list[str]:
    """The models whose weights nobody has the size of yet."""
    return [spec.name for spec in unit.specs if not spec.source.is_local and not spec.locked]


def _is_bound_to_gpu(spec: ModelSpec) -> bool:
    return any(group.kind == "KIND_GPU" for group in spec.instance_groups)


def _list(names: list[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)


def num_gpus(spec: ModelSpec) -> int:
    """The GPUs that one engine of a model computes on: 1 without vLLM."""
    return vllm_arguments.num_gpus(spec.options)


def max_gpus(unit: Unit) -> int:
    """The GPUs of the engine that computes on most of them, of the models of one server."""
    return max(map(num_gpus, unit.specs))
