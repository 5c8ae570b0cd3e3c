"""Decides what has to be done so that a server runs what models.yaml says; others do it.

An entry of models.yaml becomes one Triton model (a folder), or several that belong together. Each
folder's wanted digest is compared with the one that the server runs, its wanted files with those on
disk.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from generator.render.manifest import CONFIG_FILE, ROUTING_FILE, digest_in
from generator.repository.compare import Action, ModelPlan, compare
from generator.repository.version_folders import next_version
from generator.repository.versions import RENDERED_VERSION, leaves_out, renumbered
from generator.spec.triton_models import ENGINE_SUFFIX, LOAD_PARAMETER, STEP_SUFFIXES
from hf_triton.serving.apply.model_control import ServedFolder

# Read without the parser, as a digest is.
_LOADED_LATER = re.compile(rb'^parameters { key: "%s" ' % LOAD_PARAMETER.encode(), re.MULTILINE)
PART_SUFFIXES = (ENGINE_SUFFIX, *STEP_SUFFIXES)


class FolderAction(enum.Enum):
    """What has to be done with a folder."""

    NOTHING = "nothing"
    WRITE = "write"  # the server already runs the same
    LOAD = "load"  # none of its versions answers
    REPLACE = "replace"  # a new version beside the one that answers
    RENEW = "renew"  # a new version of a model that is not loaded, and stays so


@dataclass(frozen=True)
class FolderChange:
    """The change of one Triton model; ``number`` is the version that will be written."""

    plan: ModelPlan
    served: ServedFolder
    action: FolderAction
    number: int

    @property
    def name(self) -> str:
        return self.plan.name

    @property
    def before(self) -> int:
        """The version that answers, or would if it were loaded."""
        return max(self.served.ready, default=self.plan.version)

    @property
    def is_load(self) -> bool:
        """Whether the server is told to load it."""
        return self.action in (FolderAction.LOAD, FolderAction.REPLACE)

    @property
    def is_new_version(self) -> bool:
        """Whether it is written beside the version before."""
        return self.action in (FolderAction.REPLACE, FolderAction.RENEW)

    @property
    def config(self) -> bytes:
        """The wanted config.pbtxt."""
        return wanted_file(self.plan, CONFIG_FILE) or b""

    @property
    def config_before(self) -> bytes:
        """The config.pbtxt on disk; empty where there is none."""
        found = (change.old for change in self.plan.changes if change.path == CONFIG_FILE)
        return next(found, None) or b""


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
        """The model's, as in models.yaml."""
        return self.folders[0].name

    @property
    def updates(self) -> list[FolderChange]:
        """The folders to load, or to write a new version of, in order: engine before front, steps
        before ensemble.
        """
        ordered = (*self.folders[1:], *self.folders[:1])
        return [folder for folder in ordered if folder.is_load or folder.is_new_version]

    @property
    def is_loaded_later(self) -> bool:
        """Whether the model is not always loaded: its files are all that is needed before."""
        return bool(_LOADED_LATER.search(self.folders[0].config))

    @property
    def is_addition(self) -> bool:
        """Whether the model was not served before."""
        return self.folders[0].action is FolderAction.LOAD

    @property
    def is_update(self) -> bool:
        """Whether there is more to do than to write files that need no load."""
        return bool(self.updates or self.obsolete)

    @property
    def is_nothing(self) -> bool:
        """Whether there is nothing to do."""
        nothing = all(folder.action is FolderAction.NOTHING for folder in self.folders)
        return nothing and not self.obsolete and not self.refusal


@dataclass(frozen=True)
class RemovedModel:
    """A model that is served and no longer in models.yaml; its folders in the order to unload."""

    folders: tuple[str, ...]

    @property
    def name(self) -> str:
        """The model's, as models.yaml had it."""
        return self.folders[0]


def decide_group(
    plans: Iterable[ModelPlan],
    served: Mapping[str, ServedFolder],
    obsolete: Collection[str] = (),
    *,
    force: bool,
) -> GroupChange:
    """What has to be done with one entry's folders. ``force`` overwrites edited files."""
    plans = tuple(plans)
    folders = tuple(_decide(plan, served.get(plan.name, ServedFolder())) for plan in plans)
    stands = [plan for plan in plans if plan.conflicts and not (force and plan.force_helps)]
    refusal = "; ".join(conflict for plan in stands for conflict in plan.conflicts)
    if not refusal:
        refusal = next(filter(None, map(_why_not_replaced, folders)), "")
    change = GroupChange(folders, tuple(sorted(obsolete)), refusal)
    if change.is_loaded_later and not any(folder.served.ready for folder in folders):
        return replace(change, folders=tuple(map(_asleep, folders)))
    return change


def split_unwanted(
    unwanted: Iterable[str], models: Collection[str]
) -> tuple[dict[str, list[str]], list[RemovedModel]]:
    """Sorts folders that are served and not wanted: those that each of ``models`` no longer has,
    and the models that are removed entirely.
    """
    names = set(unwanted)
    obsolete: dict[str, list[str]] = {}
    removed: dict[str, list[str]] = {}
    for name in sorted(names):
        whole = model_of_folder(name, {*names, *models})
        parts = obsolete if whole in models else removed
        parts.setdefault(whole, []).append(name)
    ordered = (_whole_first(whole, parts) for whole, parts in removed.items())
    return obsolete, [RemovedModel(parts) for parts in ordered]


def _whole_first(whole: str, parts: list[str]) -> tuple[str, ...]:
    """The front or ensemble first: it is unloaded before the folders that it needs."""
    return tuple(sorted(parts, key=lambda part: part != whole))


def wanted_file(plan: ModelPlan, path: str) -> bytes | None:
    found = (change.new for change in plan.changes if change.path == path)
    return next(found, None)


def rendered_files(plan: ModelPlan) -> dict[str, bytes]:
    """The plan's wanted files with the paths that rendering gives them (version 1)."""
    wanted = {change.path: change.new for change in plan.changes if change.new is not None}
    return renumbered(wanted, plan.version, RENDERED_VERSION)


def compare_again(plan: ModelPlan) -> ModelPlan:
    """What the plan wants, against what lies in its folder by now."""
    written = next(iter(plan.kept.values()), "")
    files = rendered_files(plan)
    return compare(plan.folder, files, keep_edits=plan.keeps_edits, written=written)


def changes_routing(plan: ModelPlan) -> bool:
    """Whether the folder's routing.json is to change."""
    found = (change for change in plan.changes if change.path == ROUTING_FILE)
    return any(change.action is not Action.IDENTICAL for change in found)


def model_of_folder(name: str, others: Collection[str]) -> str:
    """The entry that a folder belongs to, by the folder's name; the folder itself otherwise."""
    bases = (name.removesuffix(suffix) for suffix in PART_SUFFIXES if name.endswith(suffix))
    return next((base for base in bases if base in others), name)


def _decide(plan: ModelPlan, served: ServedFolder) -> FolderChange:
    wanted = digest_in(wanted_file(plan, CONFIG_FILE) or b"")
    if not served.ready:
        return FolderChange(plan, served, FolderAction.LOAD, plan.version)
    if served.digest == wanted:
        return FolderChange(plan, served, _without_load(plan), plan.version)
    return FolderChange(plan, served, FolderAction.REPLACE, _next_number(plan, served))


def _asleep(folder: FolderChange) -> FolderChange:
    """What is done with one that is not loaded. Other contents are a new version, as of one that
    is, so that a rollback finds the one before.
    """
    number = _next_number(folder.plan, folder.served)
    before = digest_in(folder.config_before)
    if before in ("", digest_in(folder.config)) or leaves_out(folder.config, number):
        return replace(folder, action=_without_load(folder.plan))
    return replace(folder, action=FolderAction.RENEW, number=number)


def _next_number(plan: ModelPlan, served: ServedFolder) -> int:
    return max(next_version(plan.folder), 1 + max(served.active, default=0))


def _without_load(plan: ModelPlan) -> FolderAction:
    return FolderAction.NOTHING if plan.is_current else FolderAction.WRITE


def _why_not_replaced(folder: FolderChange) -> str:
    if folder.action is not FolderAction.REPLACE:
        return ""
    reason = leaves_out(folder.config, folder.number)
    return reason and f"{folder.name}: {reason}"
