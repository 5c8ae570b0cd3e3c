"""models.yaml held against the model repository: what generating would do, not yet done."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from generator.compare import ModelPlan, compare, owned_folders
from generator.models_yaml import load
from generator.progress import track
from generator.render import render
from generator.repository import Removal, plan_removal
from generator.spec import ModelSpec
from generator.templates import Task, find_tasks


@dataclass(frozen=True)
class Plan:
    """What generating means for each model, and the folders of ours that no model needs."""

    specs: tuple[ModelSpec, ...]
    models: tuple[ModelPlan, ...]
    orphans: tuple[Removal, ...]

    @property
    def conflicts(self) -> list[str]:
        """One line for each file that stands in the way."""
        return [conflict for model in self.models for conflict in model.conflicts]

    @property
    def is_current(self) -> bool:
        """Whether the repository is what models.yaml says."""
        return not self.orphans and all(model.is_current for model in self.models)


def make_plan(config: Path, repository: Path) -> Plan:
    """Reads everything, writes nothing. Raises SpecError, RepositoryError or TemplateError."""
    tasks = find_tasks()
    specs = load(config, tasks)
    models = tuple(plan_models(track(specs, "comparing"), tasks, repository))
    names = {spec.name for spec in specs}
    orphans = tuple(find_orphans(repository, names, weights=False, force=False))
    return Plan(tuple(specs), models, orphans)


def plan_models(
    specs: Iterable[ModelSpec], tasks: dict[str, Task], repository: Path
) -> Iterator[ModelPlan]:
    """The plan of each model, one after the other."""
    for spec in specs:
        yield compare(repository / spec.name, render(spec, tasks[spec.task], repository))


def find_orphans(
    repository: Path, names: set[str], weights: bool, force: bool
) -> Iterator[Removal]:
    """The folders of ours that no model needs and that hold something to take away."""
    for folder in owned_folders(repository):
        if folder.name not in names:
            removal = plan_removal(folder, weights, force)
            if not removal.is_empty:
                yield removal
