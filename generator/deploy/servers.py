"""Groups models into servers, and says what each gets: image, GPUs, memory, storage, its files.

Holds flags against the models; every combination that can't work is refused here. Knows no target.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from generator.deploy.options import Options, quantity
from generator.errors import UsageError
from generator.render.memory import weight_bytes
from generator.render.model_data import model_values
from generator.spec import vllm_arguments
from generator.spec.model_spec import InstanceGroup, ModelSpec
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

_MAX_SLUG = 20  # 63 less a name of 40, and what kind of object it is stays readable
_WAITING_TASKS = (*COMPLETION_TASKS, *SPEECH_TASKS, "pipeline")


@dataclass(frozen=True)
class Unit:
    """One server, or as many alike as it has replicas. ``name`` is that of its objects, ``model``
    that of its only model where each has a server of its own.
    """

    name: str
    model: str | None
    specs: tuple[ModelSpec, ...]

    @property
    def names(self) -> list[str]:
        return [spec.name for spec in self.specs]

    @property
    def quoted_names(self) -> str:
        return ", ".join(f"'{name}'" for name in self.names)

    @property
    def folders(self) -> list[str]:
        """The names that clients ask Triton for; what only a canary sends on to is none."""
        public = [spec for spec in self.specs if spec.arm_of is None]
        return [model.name for spec in public for model in triton_models(spec)]

    @property
    def gpu_ids(self) -> list[int]:
        """The GPUs that its instance groups name, ascending."""
        return sorted({gpu for group in self._groups for gpu in group.gpus})

    @property
    def can_use_gpu(self) -> bool:
        return any(group.kind != "KIND_CPU" for group in self._groups)

    @property
    def _groups(self) -> list[InstanceGroup]:
        return [group for spec in self.specs for group in spec.instance_groups]

    @property
    def from_hub(self) -> bool:
        return any(not part.source.is_local for spec in self.specs for part in spec.parts)

    @property
    def unknown_weights(self) -> list[str]:
        """The models whose weights nobody has the size of yet."""
        return [one.name for one in self.specs if not one.source.is_local and not one.locked]

    @property
    def num_processes(self) -> int:
        """The Python processes of its instances."""
        models = [model for spec in self.specs for model in triton_models(spec)]
        python = [model for model in models if model.backend in ("python", "vllm")]
        return sum(_num_instances(model.instance_groups) for model in python)

    @property
    def max_gpus(self) -> int:
        """The GPUs of the engine that computes on most of them: 1 without vLLM."""
        return max(vllm_arguments.num_gpus(spec.options) for spec in self.specs)


@dataclass(frozen=True)
class Server(Unit):
    """A unit with what it gets; sizes in MiB."""

    files: Mapping[str, bytes]
    image: str
    gpus: int
    cpu: str
    memory_mib: int
    shm_mib: int
    storage_mib: int

    @property
    def num_threads(self) -> str:
        """Its cores: without a quota, processes see all of the machine's."""
        return str(max(1, int(float(self.cpu))))

    @property
    def has_environments(self) -> bool:
        """Whether any of its models has a Python environment that hf-triton builds."""
        return any(spec.python_env and spec.python_env.files for spec in self.specs)

    @property
    def has_waiting(self) -> bool:
        """Whether any of its models counts the requests that wait."""
        return any(spec.task in _WAITING_TASKS for spec in self.specs)

    @property
    def has_open(self) -> bool:
        """Whether any of its models counts the requests that it works on: encoders."""
        return any(spec.task not in _WAITING_TASKS for spec in self.specs)


def unit_for_each(name: str, specs: Sequence[ModelSpec]) -> list[Unit]:
    """A server for each model, but one for those of which one sends requests to another."""
    groups = [{spec.name} for spec in specs]
    for spec in specs:
        arms = spec.canary.arms if spec.canary else ()
        reached = {spec.name, *(arm.model_of(spec.name) for arm in arms)}
        first, *others = [names for names in groups if names & reached]
        first.update(*others)
        groups = [names for names in groups if names not in others]
    members = [tuple(spec for spec in specs if spec.name in names) for names in groups]
    return [Unit(f"{name}-{slug(own[0].name)}", own[0].name, own) for own in members]


def device_of(units: list[Unit], args: Options) -> str:
    """``gpu`` or ``cpu``. Raises UsageError where the flags forbid what models.yaml asks for."""
    able = any(unit.can_use_gpu for unit in units)
    device = str(args.device or ("gpu" if able and args.gpus != 0 else "cpu"))
    if device == "gpu" and args.gpus == 0:
        raise UsageError("--device gpu with --gpus 0: leave one of them out")
    if device == "cpu" and args.gpus:
        raise UsageError(f"--device cpu with --gpus {args.gpus}: leave one of them out")
    specs = [spec for unit in units for spec in unit.specs] if device == "cpu" else []
    bound = [
        f"'{spec.name}'"
        for spec in specs
        if any(group.kind == "KIND_GPU" for group in spec.instance_groups)
    ]
    if bound:
        raise UsageError(
            f"without GPUs (--device cpu, or --gpus 0), but instance groups of {', '.join(bound)} "
            "are KIND_GPU: leave the flag out, or change them"
        )
    return device


def server_of(unit: Unit, files: Mapping[str, bytes], device: str, args: Options) -> Server:
    gpus = _gpus(unit, args) if device == "gpu" and unit.can_use_gpu else 0
    between_gpus = _SHM_PER_GPU_MIB * gpus if unit.max_gpus > 1 else 0
    requests = max(_LEAST_SHM_MIB, _SHM_PER_PROCESS_MIB * (1 + unit.num_processes))
    shm_mib = args.shm_size or requests + between_gpus
    if args.memory is not None and args.memory <= shm_mib:
        raise UsageError(
            f"got --memory {quantity(args.memory)}, which has to hold shared memory too, of which "
            f"{unit.quoted_names} get {quantity(shm_mib)}: give more, or a smaller --shm-size"
        )
    return Server(
        **vars(unit),
        files=files,
        image=args.image or f"hf-triton:{device}",
        gpus=gpus,
        cpu=args.cpu,
        memory_mib=args.memory or _memory(unit, shm_mib, gpus),
        shm_mib=shm_mib,
        storage_mib=args.storage_size or _storage(unit),
    )


def _gpus(unit: Unit, args: Options) -> int:
    asked, named, spread = args.gpus, len(unit.gpu_ids), unit.max_gpus
    if asked is not None and asked < named:
        raise UsageError(
            f"got --gpus {asked}, but the instance groups of {unit.quoted_names} name {named} GPUs"
        )
    if spread > args.gpus_per_node:
        raise UsageError(
            f"options.vllm of {unit.quoted_names} asks for {spread} GPUs, of which a node has "
            f"{args.gpus_per_node} (--gpus-per-node): for one model over several nodes use vLLM's "
            "own Helm chart"
        )
    if asked is not None and asked < spread:
        raise UsageError(
            f"got --gpus {asked}, but options.vllm of {unit.quoted_names} asks for {spread} GPUs"
        )
    return asked or max(named, spread)


def _memory(unit: Unit, shm_mib: int, gpus: int) -> int:
    """With shared memory, and all copies of the weights, which pass through it to a GPU."""
    wanted = _BASE_MEMORY_MIB + unit.num_processes * _MEMORY_PER_PROCESS_MIB + shm_mib
    nowhere = Path("model_repository")
    for engine in (triton_models(spec)[-1] for spec in unit.specs):
        values = model_values(engine, nowhere)
        size = weight_bytes(nowhere / engine.name, values, on_gpu=gpus > 0)
        wanted += math.ceil(size * _num_instances(engine.instance_groups) / 2**20)
    return math.ceil(wanted / _GIB) * _GIB


def _storage(unit: Unit) -> int:
    parts = [part for spec in unit.specs for part in spec.parts if not part.source.is_local]
    sizes = [part.locked.size if part.locked else 0 for part in parts]
    if not sizes or not all(sizes):
        return _UNKNOWN_STORAGE_MIB
    return math.ceil((sum(sizes) / 2**20 * _SPARE_STORAGE + _GIB) / _GIB) * _GIB


def slug(name: str) -> str:
    """The name as Kubernetes takes it; a changed one ends in four letters of its hash."""
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    if plain == name and len(plain) <= _MAX_SLUG:
        return plain
    mark = hashlib.sha256(name.encode()).hexdigest()[:4]
    return f"{plain[: _MAX_SLUG - 5].strip('-')}-{mark}"


def _num_instances(groups: Iterable[InstanceGroup]) -> int:
    return sum(group.count * max(1, len(group.gpus)) for group in groups)
