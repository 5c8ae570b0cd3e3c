"""Groups models into servers, and says what each gets: image, GPUs, memory, storage.

Holds flags against the models; every combination that can't work is refused here. Knows no target.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from generator.deploy.options import Options
from generator.errors import UsageError
from generator.render.memory import weight_bytes
from generator.render.model_data import model_values
from generator.spec.model_spec import InstanceGroup, ModelSpec, num_gpus
from generator.spec.task_sets import COMPLETION_TASKS, SPEECH_TASKS
from generator.spec.triton_models import WITHOUT_WEIGHTS, triton_models

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
class Server:
    """One server, or as many alike as it has replicas, as templates see it; sizes in MiB. ``name``
    is that of its objects, ``model`` that of its only model where each has a server of its own.
    Sizes raise UsageError where the flags ``asked`` contradict the models.
    """

    name: str
    model: str | None
    specs: tuple[ModelSpec, ...]
    asked: Options
    device: str

    @property
    def quoted_names(self) -> str:
        return ", ".join(f"'{spec.name}'" for spec in self.specs)

    @property
    def folders(self) -> list[str]:
        """The names that clients ask Triton for; what only a canary sends on to is none."""
        public = [spec for spec in self.specs if spec.arm_of is None]
        return [model.name for spec in public for model in triton_models(spec)]

    @property
    def gpu_ids(self) -> list[int]:
        """The GPUs that its instance groups name, ascending."""
        return sorted({gpu for group in _groups(self.specs) for gpu in group.gpus})

    @property
    def hub_parts(self) -> list[ModelSpec]:
        return [part for spec in self.specs for part in spec.parts if not part.source.is_local]

    @property
    def is_locked(self) -> bool:
        """Whether models.lock has all that it takes from the Hub."""
        return all(part.locked for part in self.hub_parts)

    @property
    def unknown_weights(self) -> list[str]:
        """The models whose weights nobody has the size of yet."""
        return [one.name for one in self.specs if not one.source.is_local and not one.locked]

    @property
    def image(self) -> str:
        return self.asked.image or f"hf-triton:{self.device}"

    @property
    def num_threads(self) -> str:
        """The number of its cores: without a quota, processes see all of the machine's."""
        return str(max(1, int(float(self.asked.cpu))))

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

    @cached_property
    def gpus(self) -> int:
        if self.device == "cpu" or all(one.kind == "KIND_CPU" for one in _groups(self.specs)):
            return 0
        asked, least = self.asked.gpus, max(len(self.gpu_ids), self._most_gpus)
        if asked is not None and asked < least:
            raise UsageError(
                f"got --gpus {asked}, but {self.quoted_names} use {least} GPUs by their instance "
                "groups and options.vllm"
            )
        return asked or least

    @property
    def _most_gpus(self) -> int:
        """The GPUs of the engine that computes on most of them: 1 without vLLM."""
        return max(num_gpus(spec.options) for spec in self.specs)

    @property
    def _num_processes(self) -> int:
        """The Python processes of its instances."""
        models = [model for spec in self.specs for model in triton_models(spec)]
        python = [model for model in models if model.backend == "python"]
        return sum(_num_instances(model.instance_groups) for model in python)

    @cached_property
    def shm_mib(self) -> int:
        between_gpus = _SHM_PER_GPU_MIB * self.gpus if self._most_gpus > 1 else 0
        requests = max(_LEAST_SHM_MIB, _SHM_PER_PROCESS_MIB * (1 + self._num_processes))
        return self.asked.shm_size or requests + between_gpus

    @cached_property
    def memory_mib(self) -> int:
        """Includes shared memory and all copies of the weights, which pass through it to a GPU."""
        nowhere = Path("model_repository")
        wanted = _BASE_MEMORY_MIB + self._num_processes * _MEMORY_PER_PROCESS_MIB + self.shm_mib
        models = (model for spec in self.specs for model in triton_models(spec))
        for model in (one for one in models if one.role not in WITHOUT_WEIGHTS):
            values = model_values(model, nowhere)
            size = weight_bytes(nowhere / model.name, values, on_gpu=self.gpus > 0)
            wanted += math.ceil(size * _num_instances(model.instance_groups) / 2**20)
        return self.asked.memory or math.ceil(wanted / _GIB) * _GIB

    @cached_property
    def storage_mib(self) -> int:
        sizes = [part.locked.size if part.locked else 0 for part in self.hub_parts]
        usual = _UNKNOWN_STORAGE_MIB
        if sizes and all(sizes):
            usual = math.ceil((sum(sizes) / 2**20 * _SPARE_STORAGE + _GIB) / _GIB) * _GIB
        return self.asked.storage_size or usual


def servers_of(specs: Sequence[ModelSpec], asked: Options) -> list[Server]:
    """One for all models; or with --per-model one for each, but one for those of which one sends
    requests to another. Raises UsageError where the flags forbid what models.yaml asks for.
    """
    device = _device(specs, asked)
    if not asked.per_model:
        return [Server(asked.name, None, tuple(specs), asked, device)]
    groups = [{spec.name} for spec in specs]
    for spec in specs:
        arms = spec.canary.arms if spec.canary else ()
        reached = {spec.name, *(arm.model_of(spec.name) for arm in arms)}
        first, *others = [names for names in groups if names & reached]
        first.update(*others)
        groups = [names for names in groups if names not in others]
    members = [tuple(spec for spec in specs if spec.name in names) for names in groups]
    names = [own[0].name for own in members]
    named = zip(names, members, strict=True)
    return [Server(f"{asked.name}-{slug(name)}", name, own, asked, device) for name, own in named]


def _device(specs: Sequence[ModelSpec], asked: Options) -> str:
    """``gpu`` or ``cpu``."""
    able = any(group.kind != "KIND_CPU" for group in _groups(specs))
    device = str(asked.device or ("gpu" if able and asked.gpus != 0 else "cpu"))
    if device == "gpu" and asked.gpus == 0:
        raise UsageError("--device gpu with --gpus 0: leave one of them out")
    if device == "cpu" and asked.gpus:
        raise UsageError(f"--device cpu with --gpus {asked.gpus}: leave one of them out")
    bound = [
        f"'{spec.name}'"
        for spec in specs
        if device == "cpu" and any(group.kind == "KIND_GPU" for group in spec.instance_groups)
    ]
    if bound:
        raise UsageError(
            f"without GPUs (--device cpu, or --gpus 0), but instance groups of {', '.join(bound)} "
            "are KIND_GPU: leave the flag out, or change them"
        )
    return device


def slug(name: str) -> str:
    """The name as Kubernetes takes it; a changed one ends in four letters of its hash."""
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    if plain == name and len(plain) <= _MAX_SLUG:
        return plain
    mark = hashlib.sha256(name.encode()).hexdigest()[:4]
    return f"{plain[: _MAX_SLUG - 5].strip('-')}-{mark}"


def _groups(specs: Iterable[ModelSpec]) -> list[InstanceGroup]:
    return [group for spec in specs for group in spec.instance_groups]


def _num_instances(groups: Iterable[InstanceGroup]) -> int:
    return sum(group.count * max(1, len(group.gpus)) for group in groups)
