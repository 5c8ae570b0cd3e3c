"""The Triton models, each a folder, that a ModelSpec becomes. Triton refuses /infer on a decoupled
model and streams only from one. So a streaming entry becomes two: ``<name>_stream`` holds the
engine, ``<name>`` forwards to it and answers each request once. ``layout: ensemble`` becomes four.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from generator.spec.model_spec import InstanceGroup, ModelSpec
from hf_triton.runtime.link.protocol import VERSION as LINK_VERSION

Role = Literal["whole", "front", "engine", "ensemble", "tokenizer", "model", "postprocessing"]

ENGINE_SUFFIX = "_stream"
# The steps of an ensemble, in the order in which a request passes them.
STEPS: tuple[Role, ...] = ("tokenizer", "model", "postprocessing")
WITHOUT_WEIGHTS: tuple[Role, ...] = ("front", "ensemble", "tokenizer", "postprocessing")
STEP_SUFFIXES = tuple(f"_{step}" for step in STEPS)
TASK_PARAMETER = "hf_triton_task"
ROLE_PARAMETER = "hf_triton_role"
ENGINE_PARAMETER = "hf_triton_engine"
ARM_PARAMETER = "hf_triton_arm_of"
ADAPTERS_PARAMETER = "hf_triton_adapters"
SERVED_NAMES_PARAMETER = "hf_triton_served_names"
# Written to the folder with an entry's own name, unless the entry is always loaded.
LOAD_PARAMETER = "hf_triton_load"
IDLE_PARAMETER = "hf_triton_idle_s"
# The version of the protocol between a front and its engine.
LINK_PARAMETER = "hf_triton_link"
# A summary of a local model's files when its folder was generated.
LOCAL_FILES_PARAMETER = "hf_triton_local_files"
# Triton starts this file of a model's folder, if it is there, in the place of its own Python stub.
LAUNCHER_FILE = "triton_python_backend_stub"


@dataclass(frozen=True)
class TritonModel:
    """One folder: ``name`` is the folder's, ``spec.name`` the one that models.yaml gives."""

    name: str
    role: Role
    spec: ModelSpec

    @property
    def is_decoupled(self) -> bool:
        """True if one request may have many responses."""
        return self.role == "engine"

    @property
    def engine(self) -> str | None:
        """The model that a front forwards to; others hold their engine themselves."""
        return engine_name(self.spec.name) if self.role == "front" else None

    @property
    def is_step(self) -> bool:
        return self.role in STEPS

    @property
    def backend(self) -> str:
        """The Triton backend that runs it; empty for an ensemble."""
        ensemble = self.spec.ensemble
        if self.role == "ensemble":
            return ""
        return ensemble.backend if ensemble and self.role == "model" else "python"

    @property
    def max_batch_size(self) -> int:
        """The most rows that Triton batches for it; 0 without a batch dimension."""
        ensemble = self.spec.ensemble
        if ensemble and self.is_step:
            native = self.role == "model" and ensemble.is_native
            return ensemble.model_max_batch_size if native else 0
        return self.spec.max_batch_size

    @property
    def runs_python(self) -> bool:
        return self.backend == "python"

    @property
    def has_environment(self) -> bool:
        return self.spec.python_env is not None and self.runs_python and self.role != "front"

    @property
    def instance_groups(self) -> tuple[InstanceGroup, ...]:
        """The spec's groups; processes without a GPU for a folder that computes no model."""
        ensemble = self.spec.ensemble
        if self.role == "front":
            return (InstanceGroup(1, "KIND_CPU"),)
        if ensemble and self.role in ("tokenizer", "postprocessing"):
            return (InstanceGroup(getattr(ensemble, f"{self.role}_instances"), "KIND_CPU"),)
        return self.spec.instance_groups

    @property
    def parameters(self) -> dict[str, str]:
        found = {TASK_PARAMETER: self.spec.task, ROLE_PARAMETER: self.role}
        if self.engine is not None:
            found[ENGINE_PARAMETER] = self.engine
        if self.role in ("front", "engine"):
            found[LINK_PARAMETER] = str(LINK_VERSION)
        if self.spec.arm_of is not None:
            found[ARM_PARAMETER] = self.spec.arm_of
        if self.spec.takes_adapters and self.role != "front":
            names = (adapter.name for adapter in self.spec.adapters or ())
            found[ADAPTERS_PARAMETER] = ",".join(names)
        if self.spec.served_names:
            found[SERVED_NAMES_PARAMETER] = ",".join(self.spec.served_names)
        if self.spec.load != "always" and self.name == self.spec.name:
            found[LOAD_PARAMETER] = self.spec.load
            if self.spec.idle_s is not None:
                found[IDLE_PARAMETER] = str(self.spec.idle_s)
        return found


def triton_models(spec: ModelSpec) -> tuple[TritonModel, ...]:
    if spec.ensemble is not None:
        steps = (TritonModel(step_name(spec.name, step), step, spec) for step in STEPS)
        return TritonModel(spec.name, "ensemble", spec), *steps
    if not spec.streaming:
        return (TritonModel(spec.name, "whole", spec),)
    engine = TritonModel(engine_name(spec.name), "engine", spec)
    return TritonModel(spec.name, "front", spec), engine


def engine_name(name: str) -> str:
    return f"{name}{ENGINE_SUFFIX}"


def step_name(name: str, step: Role) -> str:
    return f"{name}_{step}"
