"""Plans what generating would do: compares models.yaml with the model repository."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from generator.models_yaml.reading import load
from generator.render.model_folder import render
from generator.repository.compare import ModelPlan, compare, owned_folders
from generator.repository.writing import Removal, plan_removal
from generator.spec.model_spec import ModelSpec
from generator.spec.task_folders import find_tasks
from generator.spec.triton_models import triton_models

Item = TypeVar("Item")

FIRST_AFTER_S = 0.5


@dataclass(frozen=True)
class Plan:
    """``groups`` has the folders of each spec together: they are of use only together."""

    specs: tuple[ModelSpec, ...]
    groups: tuple[tuple[ModelPlan, ...], ...]
    orphans: tuple[Removal, ...]

    @property
    def models(self) -> list[ModelPlan]:
        return [model for group in self.groups for model in group]

    @property
    def is_current(self) -> bool:
        return not self.orphans and all(model.is_current for model in self.models)


def make_plan(config: Path, repository: Path, *, keep_edits: bool = True) -> Plan:
    """Without ``keep_edits`` edited model.py are conflicts. Raises SpecError, RepositoryError."""
    specs = load(config)
    groups = tuple(plan_groups(track(specs, "comparing"), repository, keep_edits=keep_edits))
    orphans = tuple(find_orphans(repository, specs, weights=False, force=False))
    return Plan(tuple(specs), groups, orphans)


def plan_groups(
    specs: Iterable[ModelSpec], repository: Path, *, keep_edits: bool
) -> Iterator[tuple[ModelPlan, ...]]:
    tasks = find_tasks()
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
    names = {model.name for spec in specs for model in triton_models(spec)}
    for folder in owned_folders(repository, but=names):
        removal = plan_removal(folder, weights, force)
        if removal.removed or removal.removes_weights:
            yield removal


def track(items: Sequence[Item], doing: str) -> Iterable[Item]:
    """The items, and on a terminal's stderr how many of them are done."""
    if not sys.stderr.isatty():
        return items
    from tqdm import tqdm  # type: ignore[import-untyped]

    bar: Iterable[Item] = tqdm(items, desc=doing, leave=False, delay=FIRST_AFTER_S)
    return bar
