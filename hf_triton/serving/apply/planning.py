"""Decides what has to be done so that a server runs what models.yaml says. Reads only.

An entry of models.yaml becomes one Triton model (a folder), or several that belong together. Each
folder's wanted digest is compared with the one that the server runs, its wanted files with those on
disk.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from generator.render.manifest import CONFIG_FILE, ROUTING_FILE, digest_in
from generator.repository.compare import Action, ModelPlan, owned_folders
from generator.repository.plan import Plan
from generator.repository.version_folders import next_version
from generator.repository.versions import version_of
from generator.spec.triton_models import (
    ENGINE_SUFFIX,
    LINK_PARAMETER,
    LOAD_PARAMETER,
    STEP_SUFFIXES,
)
from hf_triton.serving.apply.target import ServedFolder, Target
from hf_triton.tritonserver.adapters import changes_adapters

# Read without the parser, as a digest is.
_LOADED_LATER = re.compile(rb'^parameters { key: "%s" ' % LOAD_PARAMETER.encode(), re.MULTILINE)
# As in our config.pbtxt; that of an earlier hf-triton lacks it.
_LINK_VERSION = re.compile(rb'"%s"[^"]*"(\d+)"' % LINK_PARAMETER.encode())
_ENSEMBLE = b'platform: "ensemble"'
_PART_SUFFIXES = (ENGINE_SUFFIX, *STEP_SUFFIXES)
_MAX_LISTED = 4


@dataclass(frozen=True)
class FolderChange:
    """The change of one Triton model; ``number`` is the version that will be written. Nothing is
    loaded where the server runs the same already, or the model is loaded later.
    """

    plan: ModelPlan
    served: ServedFolder
    is_load: bool
    number: int

    @property
    def name(self) -> str:
        return self.plan.name

    @property
    def is_new_version(self) -> bool:
        """True if it is loaded beside a version that answers."""
        return self.is_load and bool(self.served.ready)

    @property
    def is_nothing(self) -> bool:
        return not self.is_load and self.plan.is_current

    @property
    def config(self) -> bytes:
        return content_of(self.plan, CONFIG_FILE)

    @property
    def config_before(self) -> bytes:
        return content_of(self.plan, CONFIG_FILE, old=True)


def content_of(plan: ModelPlan, path: str, *, old: bool = False) -> bytes:
    """A file as it is to be, or as it lies on disk; empty where there is none."""
    found = (change for change in plan.changes if change.path == path)
    return next(((one.old if old else one.new) or b"" for one in found), b"")


@dataclass(frozen=True)
class GroupChange:
    """The change of one entry: its folders, the public one first. ``obsolete`` are folders that it
    no longer has; ``refusal`` is the reason why nothing is done, or empty.
    """

    folders: tuple[FolderChange, ...]
    obsolete: tuple[str, ...] = ()
    refusal: str = ""

    @property
    def name(self) -> str:
        return self.folders[0].name

    @property
    def updates(self) -> list[FolderChange]:
        """The folders to load, in order: engine before front, steps before ensemble."""
        ordered = (*self.folders[1:], *self.folders[:1])
        return [folder for folder in ordered if folder.is_load]

    @property
    def loads(self) -> list[list[FolderChange]]:
        """The folders of each load, the named one last: an ensemble loads its steps at once."""
        if _ENSEMBLE in self.folders[0].config and self.folders[0].is_load:
            return [self.updates]
        return [[folder] for folder in self.updates]

    @property
    def needs_gap(self) -> bool:
        """True if several folders change and no request may meet both old and new ones: steps of
        an ensemble, which take different times to load, or a front and an engine that speak
        different versions of the link's protocol.
        """
        whole, *parts = self.folders
        replaced = [part for part in parts if part.is_new_version]
        if len(replaced) + whole.is_new_version < 2:
            return False
        return _ENSEMBLE in whole.config or any(
            _LINK_VERSION.findall(part.config_before) != _LINK_VERSION.findall(part.config)
            for part in replaced
        )

    @property
    def is_loaded_later(self) -> bool:
        """True if the model is loaded on demand or by hand."""
        return bool(_LOADED_LATER.search(self.folders[0].config))

    @property
    def is_addition(self) -> bool:
        """True if the model was not served before."""
        return self.folders[0].is_load and not self.folders[0].is_new_version

    @property
    def is_nothing(self) -> bool:
        nothing = all(folder.is_nothing for folder in self.folders)
        return nothing and not self.obsolete and not self.refusal

    def lines(self) -> Iterator[str]:
        """A line for each folder that changes."""
        if self.refusal:
            yield f"conflict   {self.refusal}"
            return
        for folder in self.folders:
            if not folder.is_nothing:
                yield f"{self._verb(folder):<10} {folder.name}{_details(folder)}"
        if self.obsolete:
            yield f"unload     {', '.join(self.obsolete)}: no longer in {self.name}"

    def _verb(self, folder: FolderChange) -> str:
        if folder.is_new_version:
            return "change"
        if folder.is_load:
            return "add" if self.is_addition else "load"
        changes = {one.path for one in folder.plan.changes if one.action is not Action.IDENTICAL}
        if ROUTING_FILE in changes:
            return "route"
        return "adapters" if changes_adapters(folder.plan) else "write"


@dataclass(frozen=True)
class ApplyPlan:
    """The change of each model, and the folders, in the order to unload, of each model
    that is removed. ``shortages`` are of models that fit only once; models loaded
    ``one_by_one`` fit while no other loads.
    """

    groups: tuple[GroupChange, ...]
    removed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    shortages: Mapping[str, str] = field(default_factory=dict)
    one_by_one: frozenset[str] = frozenset()

    @property
    def is_nothing(self) -> bool:
        return not self.removed and all(group.is_nothing for group in self.groups)

    def lines(self) -> Iterator[str]:
        """A line for each folder that changes, and one that counts the unchanged models."""
        for group in self.groups:
            yield from group.lines()
        for model, shortage in self.shortages.items():
            yield f"no room    {model}: {shortage}"
        for model, folders in self.removed.items():
            yield f"remove     {model}: {', '.join(folders)}"
        same = sum(group.is_nothing for group in self.groups)
        if same:
            yield f"unchanged  {same} model{'s' * (same != 1)}"


def plan_apply(plan: Plan, repository: Path, target: Target, *, force: bool) -> ApplyPlan:
    """Asks the server what it runs. Raises ServerError, RepositoryError."""
    wanted = {model.name for model in plan.models}
    active = target.active_folders()
    served = target.served({*wanted, *active})
    ours = {folder.name for folder in owned_folders(repository)}
    unwanted = [
        name
        for name in active
        if name not in wanted
        # Ours by the manifest on disk; or, if the folder is gone, by the digest in its config.
        and (name in ours or (served[name].digest and not (repository / name).exists()))
    ]
    groups = {group[0].name: group for group in plan.groups}
    parts: dict[str, list[str]] = {}  # of the models of these groups, or models that go entirely
    for name in sorted(unwanted):
        parts.setdefault(_model_of(name, {*unwanted, *groups}), []).append(name)
    decided = tuple(
        decide_group(plans, served, parts.pop(model, ()), force=force)
        for model, plans in groups.items()
    )
    removed = {
        # The front or ensemble first: it is unloaded before the folders that it needs.
        model: tuple(sorted(folders, key=lambda folder: folder != model))
        for model, folders in parts.items()
    }
    return ApplyPlan(decided, removed)


def decide_group(
    plans: Iterable[ModelPlan],
    served: Mapping[str, ServedFolder],
    obsolete: Collection[str] = (),
    *,
    force: bool,
) -> GroupChange:
    """Plans one entry's folders. ``force`` overwrites edited files."""
    plans = tuple(plans)
    folders = tuple(_decide(plan, served.get(plan.name, ServedFolder())) for plan in plans)
    stands = [plan for plan in plans if plan.conflicts and not (force and plan.force_helps)]
    refusal = "; ".join(conflict for plan in stands for conflict in plan.conflicts)
    change = GroupChange(folders, tuple(sorted(obsolete)), refusal)
    if not change.is_loaded_later or any(folder.served.ready for folder in folders):
        return change
    return replace(change, folders=tuple(replace(one, is_load=False) for one in folders))


def _decide(plan: ModelPlan, served: ServedFolder) -> FolderChange:
    is_same = served.digest == digest_in(content_of(plan, CONFIG_FILE))
    if is_same or not served.ready:
        return FolderChange(plan, served, not served.ready, plan.version)
    number = max(next_version(plan.folder), 1 + max(served.active, default=0))
    return FolderChange(plan, served, True, number)


def _model_of(name: str, others: Collection[str]) -> str:
    """The entry that a folder belongs to, by the folder's name; the folder itself otherwise."""
    bases = (name.removesuffix(suffix) for suffix in _PART_SUFFIXES if name.endswith(suffix))
    return next((base for base in bases if base in others), name)


def _details(folder: FolderChange) -> str:
    paths = [one.path for one in folder.plan.changes if one.action is not Action.IDENTICAL]
    changed = {path.partition("/")[2] if version_of(path) else path for path in paths}
    listed = ", ".join(sorted(changed)) if len(changed) <= _MAX_LISTED else f"{len(changed)} files"
    if folder.is_new_version:
        versions = f": version {max(folder.served.ready)} -> {folder.number}"
        return f"{versions} ({listed or 'as it lies on disk'})"
    return f": {listed}" if listed else ""
