"""The server of a deployment, and what it gets: image, GPUs, memory, storage.

Checks flags against the models, and refuses every combination that can't work. Knows no target.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from generator.deploy.options import Options, quantity
from generator.errors import UsageError
from generator.render.memory import weight_bytes
from generator.render.model_data import model_values
from generator.spec.model_spec import InstanceGroup, ModelSpec, num_gpus
from generator.spec.task_sets import COMPLETION_TASKS, SPEECH_TASKS
from generator.spec.triton_models import WITHOUT_WEIGHTS, TritonModel, triton_models
from generator.yaml_file.nodes import Node

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
    """One server with all models, or as many alike as it has replicas, as templates see it; sizes
    in MiB. Properties raise UsageError where the flags ``asked`` contradict the models.
    """

    specs: tuple[ModelSpec, ...]
    asked: Options

    @property
    def folders(self) -> list[str]:
        """The names that clients ask Triton for, without those that only a canary sends on to."""
        public = [spec for spec in self.specs if spec.arm_of is None]
        return [model.name for spec in public for model in triton_models(spec)]

    @property
    def gpu_ids(self) -> list[int]:
        """The GPUs that its instance groups name, ascending."""
        return sorted({gpu for group in self._groups for gpu in group.gpus})

    @property
    def hub_parts(self) -> list[ModelSpec]:
        return [part for spec in self.specs for part in spec.parts if not part.source.is_local]

    @property
    def is_locked(self) -> bool:
        """True if models.lock has all that it takes from the Hub."""
        return all(part.locked for part in self.hub_parts)

    @property
    def image(self) -> str:
        return self.asked.image or f"hf-triton:{self.device}"

    @property
    def num_threads(self) -> str:
        """The number of its cores: without a quota, processes see all of the machine's."""
        return str(max(1, int(float(self.asked.cpu))))

    @property
    def has_environments(self) -> bool:
        """True if a model has a Python environment that hf-triton builds."""
        return any(spec.python_env and spec.python_env.files for spec in self.specs)

    @property
    def has_waiting(self) -> bool:
        """True if a model counts the requests that wait."""
        return any(spec.task in _WAITING_TASKS for spec in self.specs)

    @property
    def has_open(self) -> bool:
        """True if a model counts the requests that it works on: encoders."""
        return any(spec.task not in _WAITING_TASKS for spec in self.specs)

    @cached_property
    def device(self) -> str:
        """``gpu`` or ``cpu``."""
        device = self.asked.device
        if device is None:
            can_use_gpus = any(group.kind != "KIND_CPU" for group in self._groups)
            return "gpu" if can_use_gpus else "cpu"
        if device == "cpu" and self.asked.gpus:
            raise UsageError(f"--device cpu with --gpus {self.asked.gpus}: leave one of them out")
        bound = [
            f"'{spec.name}'"
            for spec in self.specs
            if any(group.kind == "KIND_GPU" for group in spec.instance_groups)
        ]
        if device == "cpu" and bound:
            raise UsageError(
                f"--device cpu, but instance groups of {', '.join(bound)} are KIND_GPU: leave it "
                "out, or change them"
            )
        return device

    @cached_property
    def gpus(self) -> int:
        if self.device == "cpu" or all(group.kind == "KIND_CPU" for group in self._groups):
            return 0
        asked, least = self.asked.gpus, max(len(self.gpu_ids), self._most_gpus)
        if asked is not None and asked < least:
            names = ", ".join(f"'{spec.name}'" for spec in self.specs)
            raise UsageError(
                f"got --gpus {asked}, but {names} use {least} GPUs by their instance groups and "
                "options.vllm"
            )
        return asked or least

    @property
    def _groups(self) -> list[InstanceGroup]:
        return [group for spec in self.specs for group in spec.instance_groups]

    @property
    def _most_gpus(self) -> int:
        """The GPUs of the engine that computes on most of them: 1 without vLLM."""
        return max(num_gpus(spec.options) for spec in self.specs)

    @property
    def _models(self) -> list[TritonModel]:
        return [model for spec in self.specs for model in triton_models(spec)]

    @property
    def _num_processes(self) -> int:
        """The Python processes of its instances."""
        return sum(map(_num_instances, (one for one in self._models if one.backend == "python")))

    @property
    def shm_mib(self) -> int:
        between_gpus = _SHM_PER_GPU_MIB * self.gpus if self._most_gpus > 1 else 0
        requests = max(_LEAST_SHM_MIB, _SHM_PER_PROCESS_MIB * (1 + self._num_processes))
        return requests + between_gpus

    @cached_property
    def memory_mib(self) -> int:
        """Includes shared memory and every copy of the weights, also those for a GPU: they are read
        here first.
        """
        nowhere = Path("model_repository")
        wanted = _BASE_MEMORY_MIB + self._num_processes * _MEMORY_PER_PROCESS_MIB + self.shm_mib
        for model in (one for one in self._models if one.role not in WITHOUT_WEIGHTS):
            values = model_values(model, nowhere)
            size = weight_bytes(nowhere / model.name, values, on_gpu=self.gpus > 0)
            wanted += math.ceil(size * _num_instances(model) / 2**20)
        return self.asked.memory or math.ceil(wanted / _GIB) * _GIB

    @property
    def storage_mib(self) -> int:
        sizes = [part.locked.size if part.locked else 0 for part in self.hub_parts]
        usual = _UNKNOWN_STORAGE_MIB
        if sizes and all(sizes):
            usual = math.ceil((sum(sizes) / 2**20 * _SPARE_STORAGE + _GIB) / _GIB) * _GIB
        return self.asked.storage_size or usual

    def notes(self) -> Iterator[str]:
        """Yields assumptions that may be wrong."""
        if built := [
            spec.name for spec in self.specs if spec.python_env and not spec.python_env.folder
        ]:
            yield (
                f"{', '.join(built)}: the Python environment is built when the container starts, "
                "unless the image has it: docker build --build-arg PYTHON_ENVS=1"
            )
        if unknown := [
            spec.name for spec in self.specs if not spec.source.is_local and not spec.locked
        ]:
            yield (
                f"{', '.join(unknown)}: without a models.lock {self.asked.name} takes what the Hub "
                "has when it starts, and these weights are not counted in its "
                f"{quantity(self.memory_mib)} of memory: run hf-triton fetch, then deploy again; "
                "or set --memory"
            )


def written_files(spec: ModelSpec) -> list[Node]:
    """The nodes of models.yaml that name a requirements file for the model."""
    node = spec.places.get("python_env")
    if node is None or spec.python_env is None or spec.python_env.folder is not None:
        return []
    named = (node.get("requirements"), node.get("no_deps"))
    return [one for one in named if one is not None] or [node]


def _num_instances(model: TritonModel) -> int:
    return sum(group.num_instances for group in model.instance_groups)
