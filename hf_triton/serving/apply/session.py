"""One apply or rollback, from models.yaml to the record of what is served: locks the repository,
plans, carries the plan out, reports.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

from generator.errors import (
    EXIT_INPUT,
    EXIT_INTERRUPTED,
    EXIT_OK,
    GeneratorError,
    NoRoomError,
    RepositoryError,
)
from generator.models_yaml.reading import load
from generator.render.manifest import ADAPTERS_FILE, ROUTING_FILE
from generator.repository import served_record
from generator.repository import writing as writer
from generator.repository.compare import ModelPlan, compare, edited_hash, folder_version
from generator.repository.native_model import place_models
from generator.repository.plan import Plan, make_plan
from generator.repository.served_record import LastApply, LastChange, ServedRecord
from generator.repository.version_folders import current_files, files_of_version
from generator.spec.task_folders import find_tasks
from hf_triton.serving.apply.changes import decide_group, model_of_folder, split_unwanted
from hf_triton.serving.apply.execution import ApplyResult, PlanExecution, Say
from hf_triton.serving.apply.memory import with_shortages
from hf_triton.serving.apply.model_control import ModelControl
from hf_triton.serving.apply.model_update import UpdateSettings
from hf_triton.serving.apply.planning import ApplyPlan, plan_apply
from hf_triton.serving.apply.target import Target
from hf_triton.serving.python_env.ensuring import ensure_environments

DRAIN_TIMEOUT_S = 60.0
_NO_ROOM = (
    "there is no room for a second copy beside the one that answers: nothing was changed. Run "
    "hf-triton apply --allow-gap to unload the old copy before the new one is loaded (callers get "
    "errors until it is ready), or lower kv_cache_gib until two copies fit"
)


@dataclass(frozen=True)
class ApplyOptions:
    """The command line's options; ``wait``: for another process that writes to the repository;
    ``allow_gap``: where memory does not hold two copies of a model, the old one goes first.
    """

    dry_run: bool = False
    force: bool = False
    prune: bool = False
    wait: bool = False
    drain_timeout_s: float = DRAIN_TIMEOUT_S
    allow_gap: bool = False


def tell(line: str) -> None:
    """Prints a result to stdout."""
    print(line, flush=True)


def warn(line: str) -> None:
    """Writes a message to stderr."""
    sys.stderr.write(f"hf-triton: {line}\n")  # in one piece: other threads write too
    sys.stderr.flush()


class Session:
    """One apply, or rollback, of a server. Both return the exit code, and raise GeneratorError
    before anything is changed. ``stop`` may be called from another thread.
    """

    def __init__(
        self,
        repository: Path,
        target: Target,
        options: ApplyOptions,
        tell: Say = tell,
        warn: Say = warn,
    ) -> None:
        self._repository, self._target, self._options = repository, target, options
        self._tell, self._warn = tell, warn
        self._control = ModelControl(target.api)
        self._applying: PlanExecution | None = None

    def apply(self, config: Path) -> int:
        """Makes the server run what models.yaml says."""
        options = self._options
        if not (options.dry_run or self._target.is_remote):
            self._build_environments(config)  # takes minutes: others may generate meanwhile
        if not options.dry_run:
            writer.finish_interrupted(self._repository)
        with _locked(self._repository, options):
            plan = make_plan(config, self._repository, keep_edits=not options.force)
            wanted = self._look_for_room(
                plan_apply(plan, self._repository, self._control, force=options.force)
            )
            if options.dry_run:
                return EXIT_OK if wanted.is_nothing else EXIT_INPUT
            if wanted.is_nothing:
                Recorder(self._repository, wanted, is_whole=True).record(ApplyResult())
                return EXIT_OK
            place = _export_placer(plan, self._repository, self._warn)
            settings = UpdateSettings(options.drain_timeout_s, options.force, place, self._tell)
            applied = self._carry_out(wanted, settings, is_whole=True)
            self._report_orphans(plan, applied)
        return self._end(wanted, applied)

    def _build_environments(self, config: Path) -> None:
        """Builds missing Python environments. A model whose environment can't be built fails to
        load later, and its old version goes on serving.
        """
        tasks = find_tasks()
        for name, reason in ensure_environments(load(config, tasks), tasks).items():
            self._warn(f"{name}: {reason}")

    def roll_back(self) -> int:
        options = self._options
        with _locked(self._repository, options):
            wanted = self._look_for_room(plan_rollback(self._repository, self._control))
            if options.dry_run:
                return EXIT_INPUT
            settings = UpdateSettings(options.drain_timeout_s, force=True, say=self._tell)
            applied = self._carry_out(wanted, settings, is_whole=False)
        self._warn(
            "models.yaml still asks for the newer state: change it too, or apply brings that back"
        )
        return self._end(wanted, applied)

    def stop(self) -> None:
        if self._applying is not None:
            self._applying.stop()

    def _carry_out(
        self, plan: ApplyPlan, settings: UpdateSettings, *, is_whole: bool
    ) -> ApplyResult:
        recorder = Recorder(self._repository, plan, is_whole=is_whole)

        def record(applied: ApplyResult) -> None:
            try:
                recorder.record(applied)
            except GeneratorError as error:  # such as a full disk
                self._warn(f"{error}: a rollback will know nothing of this")

        self._applying = PlanExecution(self._control, settings, self._tell, self._warn)
        # Recorded before models are unloaded: else the supervisor would load them again.
        applied = self._applying.run(plan, self._repository, record)
        record(applied)
        return applied

    def _look_for_room(self, plan: ApplyPlan) -> ApplyPlan:
        """The plan with what memory lacks, shown. Raises NoRoomError where that is not allowed."""
        if plan.replaces:
            plan = with_shortages(plan, self._control.metrics())
        self._show(plan)
        if plan.shortages and not (self._options.allow_gap or self._options.dry_run):
            raise NoRoomError(f"{', '.join(plan.shortages)}: {_NO_ROOM}")
        return plan

    def _show(self, plan: ApplyPlan) -> None:
        for line in plan.lines():
            self._tell(line)
        if plan.is_nothing:
            self._tell(f"{self._target.name} runs what is wanted: nothing to do")

    def _report_orphans(self, plan: Plan, applied: ApplyResult) -> None:
        """Prunes or reports the folders on disk that no model needs any more."""
        for orphan in plan.orphans:
            if self._options.prune and not applied.failures and not applied.interrupted:
                writer.remove(orphan)
                self._tell(f"{orphan.folder}: pruned")
            else:
                message = "is no longer in models.yaml; hf-triton prune removes it"
                self._warn(f"{orphan.folder}: {message}")

    def _end(self, plan: ApplyPlan, applied: ApplyResult) -> int:
        self._tell(f"{self._target.name}: {_summary(plan, applied)}")
        if applied.interrupted:
            return EXIT_INTERRUPTED
        return EXIT_INPUT if applied.failures else EXIT_OK


def _locked(repository: Path, options: ApplyOptions) -> AbstractContextManager[None]:
    return (writer.locked_when_free if options.wait else writer.locked)(repository)


def _export_placer(plan: Plan, repository: Path, say: Say) -> Callable[[str], None]:
    specs, tasks = {spec.name: spec for spec in plan.specs}, find_tasks()

    def place(model: str) -> None:
        for note in place_models([specs[model]], tasks, repository):
            say(note)

    return place


def _summary(plan: ApplyPlan, applied: ApplyResult) -> str:
    good = [one for one in applied.outcomes if one.is_change and not one.failure]
    removed = {removed.name for removed in plan.removed}
    counts = {
        "changed": sum(one.model not in removed and not one.is_addition for one in good),
        "added": sum(one.is_addition for one in good),
        "removed": sum(one.model in removed for one in good),
        "routed": len(applied.routing),
        "with other adapters": len(applied.adapters),
        "unchanged": sum(group.is_nothing for group in plan.groups),
        "failed": len(applied.failures),
    }
    told = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    return told or "nothing done"


class Recorder:
    """Records what one apply did. ``is_whole``: the plan names every wanted model; otherwise models
    that it does not name stay in the record.
    """

    def __init__(self, repository: Path, plan: ApplyPlan, *, is_whole: bool) -> None:
        self._repository, self._plan, self._is_whole = repository, plan, is_whole
        self._before = served_record.read(repository) or ServedRecord()

    def record(self, applied: ApplyResult) -> None:
        """Records what is served now, and what a rollback undoes: a rollback that undid everything
        can't be undone itself. Raises RepositoryError.
        """
        models, last = self._models(applied), self._before.last
        if self._is_whole:
            change = self._with_sleeping(applied.last_change, models)
            last = last if change.is_empty else change
        elif applied.is_good:
            last = LastChange()
        ended = LastApply(applied.is_good, round(time.time(), 3))
        served_record.write(self._repository, ServedRecord(tuple(sorted(models)), last, ended))

    def _with_sleeping(self, change: LastChange, models: set[str]) -> LastChange:
        """The change, with the models that came and went without a load or unload."""
        before, removed = set(self._before.models), {one.name for one in self._plan.removed}
        new = [one for one in self._plan.groups if one.name in models - before] if before else []
        added = {folder.name for one in new if one.is_loaded_later for folder in one.folders}
        gone = before - models - removed
        return replace(
            change,
            added=tuple(sorted({*change.added, *added})),
            removed=tuple(sorted({*change.removed, *gone})),
        )

    def _models(self, applied: ApplyResult) -> set[str]:
        loaded = {name for outcome in applied.outcomes for name in outcome.loaded}
        before = set(self._before.models)
        groups = {group.name: group for group in self._plan.groups}
        kept = before & set(groups) if self._is_whole else before
        served = {
            name
            for name, group in groups.items()
            if name in loaded
            or group.folders[0].served.ready
            or (group.is_loaded_later and name not in applied.failures)
        }
        return (kept | served) - {removed.name for removed in self._plan.removed}


def plan_rollback(repository: Path, control: ModelControl) -> ApplyPlan:
    """The plan. Raises RepositoryError if there is nothing to undo, or its files are gone.

    Folders that the last apply changed get their previous version again, models that it added are
    removed, models that it removed are loaded again. Reads only.
    """
    record = served_record.read(repository) or ServedRecord()
    last = record.last
    if last.is_empty:
        raise RepositoryError(
            f"{repository}: nothing to roll back: no apply has changed anything, or the last one "
            "is rolled back already"
        )
    known = {*control.active_folders(), *record.models} - set(last.added)
    groups = _groups(last, {name for name in known if (repository / name).is_dir()})
    obsolete, removed = split_unwanted(last.added, groups)
    served = control.served({name for folders in groups.values() for name in folders})
    decided = tuple(
        decide_group(
            [_plan(repository / folder, last) for folder in folders],
            served,
            obsolete.get(name, ()),
            force=True,
        )
        for name, folders in groups.items()
    )
    return ApplyPlan(decided, tuple(removed))


def _groups(last: LastChange, served: set[str]) -> dict[str, list[str]]:
    """Every folder of the models that were changed or removed, the public one first."""
    touched = {*last.changed, *last.routing, *last.adapters, *last.removed}
    folders = touched | served
    models = sorted({model_of_folder(name, folders) for name in touched})
    return {
        model: [
            model,
            *sorted(
                name
                for name in folders
                if name != model and model_of_folder(name, folders) == model
            ),
        ]
        for model in models
    }


def _plan(folder: Path, last: LastChange) -> ModelPlan:
    files, version = current_files(folder), folder_version(folder)
    routing = files.pop(ROUTING_FILE, None)
    if folder.name in last.changed:
        version = last.changed[folder.name]
        before = files_of_version(folder, version)
        if before is None:
            raise RepositoryError(
                f"{folder}: version {version}, which ran before the last apply, is not there any "
                "more as it was: change models.yaml back instead, and apply that"
            )
        files = before
    if folder.name in last.routing:
        text = last.routing[folder.name]
        routing = None if text is None else text.encode()
    if folder.name in last.adapters:
        files = {**files, ADAPTERS_FILE: last.adapters[folder.name].encode()}
    files = files if routing is None else {**files, ROUTING_FILE: routing}
    return compare(folder, files, keep_edits=False, written=edited_hash(folder, version))
