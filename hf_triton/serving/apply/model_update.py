"""Updates one model of a running server, or leaves it as it was.

A changed folder gets a new version beside the one that answers; the old version drains once the new
one is ready. Where memory does not hold both, the old version is unloaded first: a gap. If a new
version fails to load, all of the model's folders are restored, on disk and in the server.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from generator.errors import GeneratorError, RepositoryError, ServerError
from generator.repository import writing as writer
from generator.repository.compare import ModelPlan
from generator.repository.version_folders import add_version, drop_last_version, drop_version
from generator.repository.versions import served_by, version_of
from hf_triton.serving.apply import atomic_switch
from hf_triton.serving.apply.changes import (
    FolderAction,
    FolderChange,
    GroupChange,
    compare_again,
    decide_group,
)
from hf_triton.serving.apply.model_control import ModelControl

BY_OTHERS_S = 600.0  # an apply waits so long for others' loads and changes of a model


@dataclass(frozen=True)
class UpdateSettings:
    """``place`` puts files that are not generated, such as exports, beside the written ones;
    ``say`` prints a line.
    """

    drain_timeout_s: float
    force: bool
    place: Callable[[str], None] = lambda _model: None
    say: Callable[[str], None] = lambda _line: None


@dataclass
class Outcome:
    """How a model's update ended. ``failure`` is the reason in one line, ``written`` are folders
    that have a new version and are not loaded, ``before`` is the version that each folder with a
    new one had, ``draining`` the versions that still had requests at the timeout; ``gap``: what it
    replaced was unloaded first, and ``lost`` is why that could not be loaded again.
    """

    model: str
    gap: bool = False
    is_removal: bool = False
    failure: str = ""
    loaded: dict[str, int] = field(default_factory=dict)
    written: list[str] = field(default_factory=list)
    before: dict[str, int] = field(default_factory=dict)
    unloaded: list[str] = field(default_factory=list)
    draining: list[str] = field(default_factory=list)
    lost: str = ""
    ready_s: float = 0.0
    drained_s: float = 0.0
    is_addition: bool = False

    @property
    def is_change(self) -> bool:
        return bool(self.loaded or self.written or self.unloaded)


def update_model(
    plans: Iterable[ModelPlan],
    obsolete: Iterable[str],
    control: ModelControl,
    settings: UpdateSettings,
    *,
    gap: bool = False,
) -> Outcome:
    """Updates one model; a failure is in the outcome, not raised. With ``gap`` what is replaced is
    unloaded before the new version is loaded.
    """
    plans = tuple(plans)
    outcome = Outcome(plans[0].name, gap=gap)
    with _failure_in(outcome), locked_folders([plan.folder for plan in plans], BY_OTHERS_S):
        _Update(control, settings, outcome).change(plans, tuple(obsolete))
    return outcome


def remove_model(
    folders: Sequence[str], repository: Path, control: ModelControl, settings: UpdateSettings
) -> Outcome:
    """Unloads a model's folders one after the other, each once its requests are answered."""
    outcome = Outcome(folders[0], is_removal=True)
    began = time.monotonic()
    # Locking would make a folder again that was pruned.
    existing = [repository / name for name in folders if (repository / name).is_dir()]
    with _failure_in(outcome), locked_folders(existing, BY_OTHERS_S):
        for name in folders:
            _Update(control, settings, outcome).unload(name)
    outcome.drained_s = time.monotonic() - began
    return outcome


@contextlib.contextmanager
def _failure_in(outcome: Outcome) -> Iterator[None]:
    try:
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
    """One update under way, whose folders are locked."""

    control: ModelControl
    settings: UpdateSettings
    outcome: Outcome

    def change(self, plans: tuple[ModelPlan, ...], obsolete: tuple[str, ...]) -> None:
        names = [plan.name for plan in plans]
        busy = self.control.wait_loaded(names, BY_OTHERS_S)
        if busy:
            raise ServerError(f"{busy} is still being loaded by somebody else: try again later")
        # The supervisor may have loaded it meanwhile, or put it out, so the state is read again.
        served = self.control.served(names)
        group = decide_group(plans, served, obsolete, force=self.settings.force)
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
        left = self._free(name)
        self.outcome.draining += [f"{name} version {version}" for version in sorted(left)]
        self.outcome.unloaded.append(name)

    def _bring_up(self, group: GroupChange) -> None:
        """Writes and loads; if that fails, raises after everything was restored."""
        outcome = self.outcome
        replaced = [folder for folder in group.updates if folder.action is FolderAction.REPLACE]
        try:
            if outcome.gap and replaced:
                self._load_after_gap(group)
            elif atomic_switch.is_needed(group):
                self._switch(group)
            else:
                self._load_each(group)
        except (GeneratorError, OSError) as error:
            raise ServerError(_failure_text(error, replaced, outcome)) from error
        outcome.loaded = {folder.name: folder.number for folder in group.updates if folder.is_load}
        outcome.written = [folder.name for folder in group.updates if not folder.is_load]
        renewed = (folder for folder in group.updates if folder.is_new_version)
        outcome.before = {folder.name: folder.before for folder in renewed}

    def _load_each(self, group: GroupChange) -> None:
        try:
            for folder in group.updates:  # a front is not written before its engine is there
                self._write(group, folder)
                if not folder.is_load:
                    continue
                failure = self.control.load(folder.name, folder.number)
                if failure is not None:
                    raise ServerError(failure)
                self.outcome.loaded[folder.name] = folder.number
        except (GeneratorError, OSError):
            self._restore(group)
            raise

    def _write(self, group: GroupChange, folder: FolderChange) -> None:
        write_folder(folder)
        self.settings.place(group.name)

    def _load_after_gap(self, group: GroupChange) -> None:
        """Unloads what is replaced, but no front, which needs no memory and says that nobody
        answers. All of an entry's steps are gone before the first new one is there: no request
        meets both.
        """
        parts = group.folders[1:] or group.folders
        replaced = [folder for folder in parts if folder.action is FolderAction.REPLACE]
        try:
            for folder in replaced:
                self._free(folder.name)
            self.settings.say(f"{group.name}: unloaded; nobody answers until it is loaded again")
            self._load_each(group)
        except (GeneratorError, OSError):
            for folder in replaced:
                self.outcome.lost = self.outcome.lost or self._load_before(folder)
            raise

    def _free(self, name: str) -> set[int]:
        """Unloads a folder and waits for its last requests, up to the timeout; the versions that
        have some left.
        """
        going = self.control.active_versions(name)
        refusal = self.control.unload(name)
        if refusal is not None:
            raise ServerError(f"{name} could not be unloaded: {refusal}")
        return self.control.wait_gone(name, going, self.settings.drain_timeout_s)

    def _load_before(self, folder: FolderChange) -> str:
        """Loads the version that a folder had before, which is on disk again, alone; returns why
        that fails, or an empty string.
        """
        version = max(folder.served.ready)
        try:
            # The new one, of an entry that failed.
            if self.control.active_versions(folder.name) - {version}:
                self._free(folder.name)
            failure = self.control.load(folder.name, version)
        except ServerError as error:
            failure = str(error)
        return f"{folder.name}: {failure}" if failure else ""

    def _switch(self, group: GroupChange) -> None:
        switch = atomic_switch.AtomicSwitch(group, self.control, partial(self._write, group))
        switch.switch_over()
        try:
            switch.retire_old(self.settings.drain_timeout_s)
        except GeneratorError as error:  # no reason to go back: the new versions answer
            text = f"its new parts answer, but the old ones stay loaded too: {error}"
            self.outcome.failure = text

    def _restore(self, group: GroupChange) -> None:
        """Restores disk and server, as far as possible."""
        for folder in reversed(group.updates):
            self.outcome.loaded.pop(folder.name, None)
            # A server that went away loads what is on disk when it is back; after a full disk the
            # next apply repairs the rest.
            with contextlib.suppress(GeneratorError):
                if folder.is_new_version:
                    drop_last_version(folder.plan.folder, folder.number)
                if folder.number not in self.control.active_versions(folder.name):
                    continue
                if not folder.is_new_version:
                    self.control.unload(folder.name)
                elif not self.outcome.gap:
                    self.control.load(folder.name, max(folder.served.ready))

    def _drain(self, group: GroupChange) -> None:
        """Waits for the replaced versions to be unloaded, then unloads obsolete folders."""
        draining, timeout_s = self.outcome.draining, self.settings.drain_timeout_s
        for folder in group.updates:
            # Requests of a process that died keep versions that were replaced before, for good.
            replaced = folder.served.active if group.obsolete else folder.served.ready
            known = {folder.number, *replaced}
            going = known - served_by(folder.config, known)
            left = self.control.wait_gone(folder.name, going, timeout_s)
            draining += [f"{folder.name} version {version}" for version in sorted(left)]
        if draining and group.obsolete:
            raise ServerError(
                f"{draining[0]} still has requests after {timeout_s:g} s, so "
                f"{', '.join(group.obsolete)} stays loaded: apply again later"
            )
        for name in group.obsolete:
            self.unload(name)


def write_folder(folder: FolderChange) -> None:
    """Writes the wanted files as the planned version. Raises RepositoryError."""
    plan = folder.plan
    if not folder.is_new_version:
        if not plan.is_current:
            writer.apply(plan)
        return
    if plan.version not in folder.served.active and _has_older(plan, folder.served.ready):
        drop_version(plan.folder)  # begun once, and never served
        plan = compare_again(plan)
    versions = {of for path in plan.known if (of := version_of(path))}
    # What ran before the last change stays, should this one fail.
    before = {max((of for of in versions if of < plan.version), default=plan.version)}
    keep = served_by(folder.config, {folder.number, *versions}) | folder.served.active | before
    add_version(plan, folder.number, keep)


def _has_older(plan: ModelPlan, served: set[int]) -> bool:
    found = {of for path in plan.known if (of := version_of(path))}
    return any(version in served for version in found if version < plan.version)


def _failure_text(error: Exception, replaced: list[FolderChange], outcome: Outcome) -> str:
    if not replaced:
        return str(error)
    version = max(replaced[-1].served.ready)
    if outcome.lost:
        return (
            f"{error}; version {version} is on disk again, but could not be loaded: {outcome.lost}"
        )
    if isinstance(error.__cause__, OSError):  # the server has gone
        return f"{error}; version {version} is on disk again"
    return f"{error}; version {version} {'is loaded again' if outcome.gap else 'goes on serving'}"
