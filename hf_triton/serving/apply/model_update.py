"""Updates one model of a running server, or leaves it as it was.

A changed folder gets a new version beside the one that answers; the old version drains once the new
one is ready. Where memory does not hold both, or where a request could meet old and new parts of
the model, the old version is unloaded first: a gap, in which the ports of ``serve`` let requests
wait. If a new version fails to load, all of the model's folders are restored, on disk and in the
server.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from generator.errors import GeneratorError, RepositoryError, ServerError
from generator.repository import writing as writer
from generator.repository.compare import ModelPlan, compare, readable_errors
from generator.repository.version_folders import add_version, drop_last_version, drop_version
from generator.repository.versions import RENDERED_VERSION, renumbered, served_by, version_of
from hf_triton.serving.apply.planning import FolderChange, GroupChange, decide_group
from hf_triton.serving.apply.target import Target

BY_OTHERS_S = 600.0  # an apply waits so long for others' loads and changes of a model


@dataclass(frozen=True)
class ApplyOptions:
    """The command line's options; ``wait``: for another process that writes to the repository;
    ``allow_gap``: where memory does not hold two copies of a model, the old one goes first.
    """

    dry_run: bool = False
    force: bool = False
    wait: bool = False
    drain_timeout_s: float = 60.0
    allow_gap: bool = False


def tell(line: str) -> None:
    print(line, flush=True)


@dataclass
class Outcome:
    """The end of a model's update. ``failure`` is the reason in one line, ``draining`` the versions
    that still had requests at the timeout; with a ``gap`` what it replaced was unloaded first.
    """

    model: str
    gap: bool = False
    is_removal: bool = False
    failure: str = ""
    loaded: dict[str, int] = field(default_factory=dict)
    unloaded: list[str] = field(default_factory=list)
    draining: list[str] = field(default_factory=list)
    ready_s: float = 0.0
    drained_s: float = 0.0
    is_addition: bool = False

    @property
    def is_change(self) -> bool:
        return bool(self.loaded or self.unloaded)


def update_model(
    plans: Sequence[ModelPlan],
    obsolete: Sequence[str],
    target: Target,
    options: ApplyOptions,
    place: Callable[[str], None],
    *,
    gap: bool = False,
) -> Outcome:
    """``place`` puts files that are not generated, such as exports, beside the written ones."""
    outcome = Outcome(plans[0].name, gap=gap)
    with _failing(outcome), locked_folders([plan.folder for plan in plans], BY_OTHERS_S):
        _Update(target, options, outcome, place).change(plans, obsolete)
    return outcome


def remove_model(
    folders: Sequence[str], repository: Path, target: Target, options: ApplyOptions
) -> Outcome:
    """Unloads a model's folders one after the other, each once its requests are answered."""
    outcome = Outcome(folders[0], is_removal=True)
    began = time.monotonic()
    # Locking would make a folder again that was pruned.
    existing = [repository / name for name in folders if (repository / name).is_dir()]
    with _failing(outcome), locked_folders(existing, BY_OTHERS_S):
        for name in folders:
            _Update(target, options, outcome).unload(name)
    outcome.drained_s = time.monotonic() - began
    return outcome


@contextlib.contextmanager
def _failing(outcome: Outcome) -> Iterator[None]:
    """Notes why a change fails."""
    try:
        with readable_errors():
            yield
    except GeneratorError as error:
        outcome.failure = str(error)


@contextlib.contextmanager
def locked_folders(folders: Iterable[Path], timeout_s: float = math.inf) -> Iterator[None]:
    """Keeps others from loading, unloading or changing the folders. Raises RepositoryError where
    others still do after ``timeout_s`` for each.
    """
    with contextlib.ExitStack() as stack:
        for folder in sorted(folders):  # one order for all processes, against deadlocks
            stack.enter_context(writer.locked_model(folder, timeout_s))
        yield


@dataclass(frozen=True)
class _Update:
    target: Target
    options: ApplyOptions
    outcome: Outcome
    place: Callable[[str], None] = lambda _model: None

    def change(self, plans: Sequence[ModelPlan], obsolete: Sequence[str]) -> None:
        names = [plan.name for plan in plans]
        busy = self.target.wait_loaded(names, BY_OTHERS_S)
        if busy:
            raise ServerError(f"{busy} is being loaded by another command: try again later")
        # The supervisor may have loaded or unloaded it meanwhile, so the state is read again.
        served = self.target.served(names)
        group = decide_group(plans, served, obsolete, force=self.options.force)
        if group.refusal:
            raise RepositoryError(group.refusal)
        self.outcome.is_addition = group.is_addition
        began = time.monotonic()
        self._bring_up(group)
        self.outcome.ready_s = time.monotonic() - began
        self._drain(group)
        self.outcome.drained_s = time.monotonic() - began - self.outcome.ready_s

    def unload(self, name: str) -> None:
        """Unloads a folder and notes what still has requests. Raises ServerError if refused."""
        self._note_draining(name, self._free(name))
        self.outcome.unloaded.append(name)

    def _bring_up(self, group: GroupChange) -> None:
        """Writes and loads; if that fails, raises after everything was restored."""
        outcome = self.outcome
        replaced = [folder for folder in group.updates if folder.is_new_version]
        outcome.gap = bool(replaced) and (outcome.gap or group.needs_gap)
        try:
            if outcome.gap:
                for folder in _unloaded_first(group):
                    self._free(folder.name)
                tell(f"{group.name}: unloaded; requests wait until it is loaded again")
            self._load_each(group)
        except (GeneratorError, OSError) as error:
            lost = self._load_before(group) if outcome.gap else ""
            raise ServerError(_failure_text(error, replaced, outcome.gap, lost)) from error
        outcome.loaded = {folder.name: folder.number for folder in group.updates}

    def _load_each(self, group: GroupChange) -> None:
        try:
            for folders in group.loads:  # a front is not written before its engine is there
                for folder in folders:
                    write_folder(folder)
                self.place(group.name)
                *steps, (name, number) = ((folder.name, folder.number) for folder in folders)
                failure = self.target.load(name, number, *steps)
                if failure is not None:
                    part = "" if name == group.name else f"{name}: "
                    raise ServerError(f"{part}{failure}")
        except (GeneratorError, OSError):
            self._restore(group)
            raise

    def _load_before(self, group: GroupChange) -> str:
        """Loads the versions before a gap, which are on disk again; why one fails, or empty."""
        failures = []
        for folder in _unloaded_first(group):
            version = max(folder.served.ready)
            try:
                # The new one, of an entry that failed.
                if self.target.active_versions(folder.name) - {version}:
                    self._free(folder.name)
                failure = self.target.load(folder.name, version)
            except ServerError as error:
                failure = str(error)
            failures += [f"{folder.name}: {failure}"] if failure else []
        return failures[0] if failures else ""

    def _free(self, name: str) -> set[int]:
        """Unloads a folder; returns the versions that still have requests at the timeout."""
        going = self.target.active_versions(name)
        refusal = self.target.unload(name)
        if refusal is not None:
            raise ServerError(f"{name} could not be unloaded: {refusal}")
        return self.target.wait_gone(name, going, self.options.drain_timeout_s)

    def _restore(self, group: GroupChange) -> None:
        """Restores disk and server, as far as possible."""
        for folder in reversed(group.updates):
            # A server that went away loads what is on disk when it is back; after a full disk the
            # next apply repairs the rest.
            with contextlib.suppress(GeneratorError):
                if folder.is_new_version:
                    drop_last_version(folder.plan.folder, folder.number)
                if folder.number not in self.target.active_versions(folder.name):
                    continue
                if not folder.is_new_version:
                    self.target.unload(folder.name)
                elif not self.outcome.gap:
                    self.target.load(folder.name, max(folder.served.ready))

    def _drain(self, group: GroupChange) -> None:
        """Waits for the replaced versions to be unloaded, then unloads obsolete folders."""
        timeout_s = self.options.drain_timeout_s
        for folder in group.updates:
            # Requests of a process that died keep versions that were replaced before, for good.
            replaced = folder.served.active if group.obsolete else folder.served.ready
            known = {folder.number, *replaced}
            going = known - served_by(folder.config, known)
            self._note_draining(folder.name, self.target.wait_gone(folder.name, going, timeout_s))
        if self.outcome.draining and group.obsolete:
            raise ServerError(
                f"{self.outcome.draining[0]} still has requests after {timeout_s:g} s, so "
                f"{', '.join(group.obsolete)} stays loaded: apply again later"
            )
        for name in group.obsolete:
            self.unload(name)

    def _note_draining(self, name: str, versions: Iterable[int]) -> None:
        self.outcome.draining += [f"{name} version {version}" for version in sorted(versions)]


def _unloaded_first(group: GroupChange) -> list[FolderChange]:
    """The folders that a gap unloads before the first new one is loaded, so that no request meets
    both: those that are replaced, but no front that may stay, which needs no memory.
    """
    parts = group.folders if group.needs_gap else group.folders[1:] or group.folders
    return [folder for folder in parts if folder.is_new_version]


def write_folder(folder: FolderChange) -> None:
    """Writes the wanted files as the planned version. Raises RepositoryError."""
    plan, served = folder.plan, folder.served
    if not folder.is_new_version:
        if not plan.is_current:
            writer.apply(plan)
        return
    is_served = any(version < plan.version for version in _versions(plan) & served.ready)
    if plan.version not in served.active and is_served:
        drop_version(plan.folder)  # begun once, and never served
        plan = compare_again(plan)
    keep = served_by(folder.config, {folder.number, *_versions(plan)}) | served.active
    add_version(plan, folder.number, keep)


def _versions(plan: ModelPlan) -> set[int]:
    return {version for path in plan.known if (version := version_of(path))}


def compare_again(plan: ModelPlan) -> ModelPlan:
    """Compares the wanted files with those that lie in the folder by now."""
    wanted = {change.path: change.new for change in plan.changes if change.new is not None}
    files = renumbered(wanted, plan.version, RENDERED_VERSION)
    written = next(iter(plan.kept.values()), "")
    return compare(plan.folder, files, keep_edits=plan.keeps_edits, written=written)


def _failure_text(error: Exception, replaced: list[FolderChange], gap: bool, lost: str) -> str:
    if not replaced:
        return str(error)
    version = max(replaced[-1].served.ready)
    if lost:
        return f"{error}; version {version} is on disk again, but could not be loaded: {lost}"
    if isinstance(error.__cause__, OSError):  # the server has gone
        return f"{error}; version {version} is on disk again"
    return f"{error}; version {version} {'is loaded again' if gap else 'goes on serving'}"
