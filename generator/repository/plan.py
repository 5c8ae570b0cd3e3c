"""Plans what generating would do: compares models.yaml with the model repository."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from generator.models_yaml.reading import load
from generator.render.model_folder import render
from generator.repository.compare import ModelPlan, compare, owned_folders
from generator.repository.progress import track
from generator.repository.writing import Removal, plan_removal
from generator.spec.model_spec import ModelSpec
from generator.spec.task_folders import Task, find_tasks
from generator.spec.triton_models import triton_models


@dataclass(frozen=True)
class Plan:
    """The plans of all folders, and the folders of ours that no model needs.

    ``groups`` has the folders of each spec together: they are of use only together.
    """

    specs: tuple[ModelSpec, ...]
    groups: tuple[tuple[ModelPlan, ...], ...]
    orphans: tuple[Removal, ...]

    @property
    def models(self) -> list[ModelPlan]:
        return [model for group in self.groups for model in group]

    @property
    def conflicts(self) -> list[str]:
        """One line for each file that stands in the way."""
        return [conflict for model in self.models for conflict in model.conflicts]

    @property
    def is_current(self) -> bool:
        """Whether the repository is what models.yaml says."""
        return not self.orphans and all(model.is_current for model in self.models)


def make_plan(config: Path, repository: Path, *, keep_edits: bool = True) -> Plan:
    """Reads everything, writes nothing; without ``keep_edits`` an edited model.py is a conflict.
    Raises SpecError, RepositoryError or TemplateError.
    """
    tasks = find_tasks()
    specs = load(config, tasks)
    groups = tuple(plan_groups(track(specs, "comparing"), tasks, repository, keep_edits=keep_edits))
    orphans = tuple(find_orphans(repository, specs, weights=False, force=False))
    return Plan(tuple(specs), groups, orphans)


def plan_groups(
    specs: Iterable[ModelSpec],
    tasks: dict[str, Task],
    repository: Path,
    *,
    keep_edits: bool,
) -> Iterator[tuple[ModelPlan, ...]]:
    """The plans of each spec's folders, one spec after the other."""
    for spec in specs:
        yield tuple(
            compare(
                repository / model.name,
                render(model, tasks[spec.task], repository),
                keep_edits=keep_edits,
            )
            for model in triton_models(spec)
        )


def find_orphans(
    repository: Path, specs: Iterable[ModelSpec], weights: bool, force: bool
) -> Iterator[Removal]:
    """The folders of ours that no model needs and that hold something to take away."""
    names = {model.name for spec in specs for model in triton_models(spec)}
    for folder in owned_folders(repository, but=names):
        removal = plan_removal(folder, weights, force)
        if not removal.is_empty:
            yield removal
