"""Groups models into servers: the models of each, what it needs, and the names of its objects.

Knows ModelSpecs; knows nothing of YAML, templates or flags.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from generator.spec.model_spec import InstanceGroup, ModelSpec
from generator.spec.triton_models import triton_models

_MAX_SLUG = 20  # 63 less a name of 40, and what kind of object it is stays readable


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
    def folders(self) -> list[str]:
        """The names that clients ask Triton for; what only a canary sends on to is none."""
        public = [spec for spec in self.specs if spec.arm_of is None]
        return [model.name for spec in public for model in triton_models(spec)]

    @property
    def gpu_ids(self) -> list[int]:
        """The GPUs that its instance groups name, ascending."""
        groups = [group for spec in self.specs for group in spec.instance_groups]
        return sorted({gpu for group in groups for gpu in group.gpus})

    @property
    def can_use_gpu(self) -> bool:
        """Whether any instance runs on one where there is one."""
        groups = [group for spec in self.specs for group in spec.instance_groups]
        return any(group.kind != "KIND_CPU" for group in groups)

    @property
    def from_hub(self) -> bool:
        """Whether weights have to be downloaded."""
        return any(not part.source.is_local for spec in self.specs for part in spec.parts)

    @property
    def num_processes(self) -> int:
        """The Python processes of its instances."""
        models = [model for spec in self.specs for model in triton_models(spec)]
        python = [model for model in models if model.backend in ("python", "vllm")]
        return sum(num_instances(model.instance_groups) for model in python)

    @property
    def tasks(self) -> set[str]:
        """The tags of its models' tasks."""
        return {spec.task for spec in self.specs}


def one_unit(name: str, specs: Sequence[ModelSpec]) -> list[Unit]:
    return [Unit(name, None, tuple(specs))]


def unit_for_each(name: str, specs: Sequence[ModelSpec]) -> list[Unit]:
    """A server for each model, but one for those of which one sends requests to another."""
    merged = _merged([{spec.name} for spec in specs], [_reached_by(spec) for spec in specs])
    groups = [[spec for spec in specs if spec.name in names] for names in merged]
    slugs = slugs_of([group[0].name for group in groups])
    return [Unit(f"{name}-{slugs[group[0].name]}", group[0].name, tuple(group)) for group in groups]


def slugs_of(names: Sequence[str]) -> dict[str, str]:
    """Names as Kubernetes takes them; what had to be changed ends in four letters of its hash."""
    return {name: _slug(name) for name in names}


def _slug(name: str) -> str:
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    if plain == name and len(plain) <= _MAX_SLUG:
        return plain
    mark = hashlib.sha256(name.encode()).hexdigest()[:4]
    return f"{plain[: _MAX_SLUG - 5].strip('-')}-{mark}"


def _reached_by(spec: ModelSpec) -> set[str]:
    """The model and those that its canary sends requests to."""
    arms = spec.canary.arms if spec.canary else ()
    return {spec.name, *(arm.model_of(spec.name) for arm in arms)}


def _merged(sets: list[set[str]], together: Iterable[set[str]]) -> list[set[str]]:
    """The sets, those that share a name with one of ``together`` made one, in their order."""
    for group in together:
        touched = [names for names in sets if names & group]
        if len(touched) > 1:
            touched[0].update(*touched[1:])
            sets = [names for names in sets if names not in touched[1:]]
    return sets


def num_instances(groups: Iterable[InstanceGroup]) -> int:
    return sum(group.count * max(1, len(group.gpus)) for group in groups)
