"""Plans an apply: compares models.yaml, the repository and the running server. Reads only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from generator.repository.compare import Action, ModelPlan, owned_folders
from generator.repository.plan import Plan
from generator.repository.versions import is_version
from hf_triton.serving.apply.changes import (
    FolderAction,
    FolderChange,
    GroupChange,
    RemovedModel,
    changes_routing,
    decide_group,
    split_unwanted,
)
from hf_triton.serving.apply.model_control import ModelControl
from hf_triton.tritonserver.adapters import changes_adapters, taken_away

_MAX_LISTED = 4
_GIB = 2**30


@dataclass(frozen=True)
class Shortage:
    """A second copy of ``model`` does not fit. Bytes on ``device``; ``load_s`` is how long the copy
    that runs took to load, in seconds.
    """

    model: str
    device: str
    needed: float
    free: float
    load_s: float

    def __str__(self) -> str:
        return (
            f"{self.model}: a second copy needs {self.needed / _GIB:.1f} GiB on {self.device}, "
            f"and {self.free / _GIB:.1f} GiB are free (its last load took {self.load_s:.0f} s)"
        )


@dataclass(frozen=True)
class ApplyPlan:
    """What has to be done with each model of models.yaml, and the models to remove. ``shortages``
    say of each model of which memory does not hold a second copy how much is needed; those in
    ``alone`` fit while no other model loads.
    """

    groups: tuple[GroupChange, ...]
    removed: tuple[RemovedModel, ...]
    shortages: Mapping[str, Shortage] = field(default_factory=dict)
    alone: frozenset[str] = frozenset()

    @property
    def is_nothing(self) -> bool:
        """Whether server and disk already are as wanted."""
        return not self.removed and all(group.is_nothing for group in self.groups)

    @property
    def replaces(self) -> bool:
        """Whether any model gets a new version beside the one that answers."""
        folders = (folder for group in self.groups for folder in group.folders)
        return any(folder.action is FolderAction.REPLACE for folder in folders)

    def lines(self) -> Iterator[str]:
        """A line for each folder that changes, and one that counts the unchanged models."""
        for group in self.groups:
            if not group.is_nothing:
                yield from _group_lines(group)
        for shortage in self.shortages.values():
            yield f"no room    {shortage}"
        for removed in self.removed:
            yield f"remove     {removed.name}: {', '.join(removed.folders)}"
        same = sum(group.is_nothing for group in self.groups)
        if same:
            yield f"unchanged  {same} model{'s' * (same != 1)}"


def plan_apply(plan: Plan, repository: Path, control: ModelControl, *, force: bool) -> ApplyPlan:
    """Asks the server what it runs. Raises ServerError, RepositoryError."""
    wanted = [model.name for model in plan.models]
    active = control.active_folders()
    served = control.served({*wanted, *active})
    ours = {folder.name for folder in owned_folders(repository)}
    needed = set(wanted)
    unwanted = [
        name
        for name in active
        if name not in needed
        # Ours by the manifest on disk; or, if the folder is gone, by the digest in its config.
        and (name in ours or (served[name].digest and not (repository / name).exists()))
    ]
    models = [group[0].name for group in plan.groups]
    obsolete, removed = split_unwanted(unwanted, models)
    groups = tuple(
        decide_group(group, served, obsolete.get(group[0].name, ()), force=force)
        for group in plan.groups
    )
    return ApplyPlan(groups, tuple(removed))


def _group_lines(group: GroupChange) -> Iterator[str]:
    if group.refusal:
        yield f"conflict   {group.refusal}"
        return
    for folder in group.folders:
        if folder.action is not FolderAction.NOTHING:
            yield f"{_verb(group, folder):<10} {folder.name}{_details(folder)}"
    if group.obsolete:
        yield f"unload     {', '.join(group.obsolete)}: {group.name} has it no more"


def _verb(group: GroupChange, folder: FolderChange) -> str:
    if folder.action is FolderAction.LOAD:
        return "add" if group.is_addition else "load"
    if folder.action is FolderAction.WRITE and changes_routing(folder.plan):
        return "route"
    if folder.action is FolderAction.WRITE and changes_adapters(folder.plan):
        return "adapters"
    return "write" if folder.action is FolderAction.WRITE else "change"


def _details(folder: FolderChange) -> str:
    changed = _changed(folder.plan)
    listed = ", ".join(changed) if len(changed) <= _MAX_LISTED else f"{len(changed)} files"
    loaded = ", ".join(taken_away(folder.plan))
    gone = f"; without what requests have loaded: {loaded}" if loaded else ""
    if folder.is_new_version:
        versions = f": version {folder.before} -> {folder.number}"
        return f"{versions} ({listed or 'as it lies on disk'}){gone}"
    return f": {listed}{gone}" if listed else ""


def _changed(plan: ModelPlan) -> list[str]:
    """The files that differ, without the version folder in their paths."""
    paths = [change.path for change in plan.changes if change.action is not Action.IDENTICAL]
    parts = (path.partition("/") for path in paths)
    return sorted(
        {
            rest if is_version(first) else path
            for path, (first, _, rest) in zip(paths, parts, strict=True)
        }
    )
