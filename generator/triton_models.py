"""The models of Triton's, each a folder of the repository, that a ModelSpec becomes.

Triton refuses /infer on a decoupled model and streams only from one. So a model that streams is
two: ``<name>_stream`` is decoupled and holds the engine, ``<name>`` forwards to it and answers
each request once. Knows nothing of templates or files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from generator.spec import InstanceGroup, ModelSpec

Role = Literal["whole", "front", "engine"]

ENGINE_SUFFIX = "_stream"
TASK_PARAMETER = "hf_triton_task"
ROLE_PARAMETER = "hf_triton_role"
ENGINE_PARAMETER = "hf_triton_engine"


@dataclass(frozen=True)
class TritonModel:
    """One folder: ``name`` is the folder's, ``spec.name`` the one that models.yaml gives."""

    name: str
    role: Role
    spec: ModelSpec

    @property
    def is_decoupled(self) -> bool:
        """Whether one request may have many responses."""
        return self.role == "engine"

    @property
    def engine(self) -> str | None:
        """The model that a front forwards to; others hold their engine themselves."""
        return engine_name(self.spec.name) if self.role == "front" else None

    @property
    def instance_groups(self) -> tuple[InstanceGroup, ...]:
        """The spec's, and for a front one process without a GPU."""
        if self.role == "front":
            return (InstanceGroup(1, "KIND_CPU"),)
        return self.spec.instance_groups

    @property
    def parameters(self) -> dict[str, str]:
        """What programs that read config.pbtxt can know of it."""
        found = {TASK_PARAMETER: self.spec.task, ROLE_PARAMETER: self.role}
        return found if self.engine is None else {**found, ENGINE_PARAMETER: self.engine}


def triton_models(spec: ModelSpec) -> tuple[TritonModel, ...]:
    """The folders of one entry of models.yaml; the first has its name."""
    if not spec.streaming:
        return (TritonModel(spec.name, "whole", spec),)
    engine = TritonModel(engine_name(spec.name), "engine", spec)
    return TritonModel(spec.name, "front", spec), engine


def engine_name(name: str) -> str:
    """The folder of the engine of a model that streams."""
    return f"{name}{ENGINE_SUFFIX}"
