"""Carries out a whole plan: changes several models at once, then writes routing, then unloads
removed models. Prints a line for each model; a model that fails does not stop the others.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from generator.errors import GeneratorError
from generator.render.manifest import ADAPTERS_FILE, ROUTING_FILE
from generator.repository import writing as writer
from generator.repository.compare import ModelPlan, read_file
from generator.repository.served_record import LastChange
from generator.repository.version_folders import current_files
from hf_triton.serving.apply import model_update as models
from hf_triton.serving.apply.changes import GroupChange, compare_again
from hf_triton.serving.apply.model_control import ModelControl
from hf_triton.serving.apply.model_update import Outcome, UpdateSettings
from hf_triton.serving.apply.planning import ApplyPlan
from hf_triton.tritonserver import adapters
from hf_triton.tritonserver.http_api import NUM_LOADERS

Say = Callable[[str], None]
_Job = Callable[[], Outcome]  # a model's change or removal

_POLL_S = 0.25
_REMIND_EVERY_S = 10.0
# Long enough for running models to take up a new routing.json: they read it twice a second
# (hf_triton/runtime/routing/router.py).
ROUTING_IS_READ_S = 2.0


@dataclass
class ApplyResult:
    """What was done of a plan."""

    outcomes: list[Outcome] = field(default_factory=list)
    routing: dict[str, str | None] = field(default_factory=dict)
    adapters: dict[str, str] = field(default_factory=dict)
    written: list[str] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)
    interrupted: bool = False

    @property
    def is_good(self) -> bool:
        return not self.failures and not self.interrupted

    @property
    def last_change(self) -> LastChange:
        """What a rollback would undo."""
        good = [outcome for outcome in self.outcomes if not outcome.failure]
        changed = {name: version for one in good for name, version in one.before.items()}
        added = {name for one in good for name in one.loaded} - set(changed)
        removed = {name for one in self.outcomes for name in one.unloaded}
        return LastChange(
            *(changed, dict(self.routing), dict(self.adapters)),
            *(tuple(sorted(added)), tuple(sorted(removed))),
        )


class PlanExecution:
    """Carries out one plan. ``tell`` gets a line for each model that is done, ``warn`` for each
    that failed.
    """

    def __init__(
        self,
        control: ModelControl,
        settings: UpdateSettings,
        tell: Say,
        warn: Say,
    ) -> None:
        self._control, self._settings = control, settings
        self._tell, self._warn = tell, warn
        self._stopping = threading.Event()
        self.applied = ApplyResult()

    def stop(self) -> None:
        """Starts no further model; models that have been started are finished."""
        self._stopping.set()

    def run(
        self, plan: ApplyPlan, repository: Path, before_removals: Callable[[ApplyResult], None]
    ) -> ApplyResult:
        """Carries out the plan. If interrupted, returns early, after the models under way."""
        for group in plan.groups:
            if group.refusal:
                self._fail(group.name, group.refusal)
        going = [group for group in plan.groups if not group.refusal]
        loading = [group for group in going if group.is_update]
        one_by_one = [g for g in loading if g.name in plan.alone or g.name in plan.shortages]
        self._run_jobs([self._update(group) for group in loading if group not in one_by_one])
        for group in one_by_one:
            if not self._stopping.is_set():
                self._run_jobs([self._update(group, gap=group.name in plan.shortages)])
        for group in going:
            if not self._stopping.is_set() and group.name not in self.applied.failures:
                self._write_rest(group)
        if plan.removed and not self._stopping.is_set():
            before_removals(self.applied)
            if self.applied.routing:  # else requests would be routed to a model being unloaded
                self._stopping.wait(ROUTING_IS_READ_S)
            common = (repository, self._control, self._settings)
            self._run_jobs([partial(models.remove_model, r.folders, *common) for r in plan.removed])
        return self.applied

    def _update(self, group: GroupChange, *, gap: bool = False) -> _Job:
        plans = [folder.plan for folder in group.folders]
        common = (plans, group.obsolete, self._control, self._settings)
        return partial(models.update_model, *common, gap=gap)

    def _run_jobs(self, jobs: Sequence[_Job]) -> None:
        """Runs the jobs, several at once, and reports each. After a first interrupt the jobs under
        way are finished; a second one is raised.
        """
        waiting: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        done: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
        for job in jobs:
            waiting.put(job)
        threads = [
            threading.Thread(target=self._run_worker, args=(waiting, done), daemon=True)
            for _ in range(min(NUM_LOADERS, len(jobs)))
        ]
        for thread in threads:
            thread.start()
        try:
            self._collect(threads, done)
        except KeyboardInterrupt:
            self._stopping.set()
            self.applied.interrupted = True
            self._warn("interrupted: finishing the models under way; Ctrl-C again leaves them")
            self._collect(threads, done)

    def _collect(
        self, threads: Sequence[threading.Thread], done: queue.SimpleQueue[Outcome]
    ) -> None:
        remind_at = time.monotonic() + _REMIND_EVERY_S
        while any(thread.is_alive() for thread in threads) or not done.empty():
            try:
                outcome = done.get(timeout=_POLL_S)
            except queue.Empty:
                if time.monotonic() > remind_at:
                    remind_at = time.monotonic() + _REMIND_EVERY_S
                    self._warn("still working: models load, or answer their last requests")
                continue
            self._record(outcome)

    def _run_worker(
        self, waiting: queue.SimpleQueue[_Job], done: queue.SimpleQueue[Outcome]
    ) -> None:
        while not self._stopping.is_set():
            try:
                job = waiting.get_nowait()
            except queue.Empty:
                return
            done.put(job())

    def _record(self, outcome: Outcome) -> None:
        self.applied.outcomes.append(outcome)
        if outcome.failure:
            self._fail(outcome.model, outcome.failure)
        elif not outcome.written:
            self._tell(_result_line(outcome))
        for name in outcome.written:
            self._tell(f"{name}: written, nothing to load")
        for draining in outcome.draining:
            self._tell(f"{draining} still answers requests, and goes when they end")

    def _fail(self, model: str, reason: str) -> None:
        self.applied.failures[model] = reason
        self._warn(f"model '{model}' failed: {reason}")

    def _write_rest(self, group: GroupChange) -> None:
        """Writes files that need no load: a routing.json or adapters.json, which the running model
        reads itself, and files that were missing on disk only.
        """
        try:
            folders = [folder.plan.folder for folder in group.folders]
            with models.locked_folders(folders, models.BY_OTHERS_S):
                for folder in group.folders:
                    self._write_folder(folder.plan, group)
        except GeneratorError as error:
            self._fail(group.name, str(error))

    def _write_folder(self, wanted: ModelPlan, group: GroupChange) -> None:
        folder = wanted.folder
        plan = compare_again(wanted)
        if plan.is_current:
            return
        if adapters.changes_adapters(plan):
            served = self._control.served([one.name for one in group.folders])
            if any(one.ready for one in served.values()):
                self.applied.adapters[folder.name] = adapters.change(plan, group.name)
                self._tell(f"{folder.name}: serves the new list of adapters, nothing was loaded")
                return
            self.applied.adapters[folder.name] = current_files(folder)[ADAPTERS_FILE].decode()
        before = read_file(folder / ROUTING_FILE)
        writer.apply(plan)
        if before == read_file(folder / ROUTING_FILE):
            self.applied.written.append(folder.name)
            self._tell(f"{folder.name}: written, nothing to load")
        else:
            self.applied.routing[folder.name] = None if before is None else before.decode()
            self._tell(f"{folder.name}: its routing is written, the running model takes it up")


def _result_line(outcome: Outcome) -> str:
    if outcome.is_removal:
        return f"{outcome.model}: unloaded after {outcome.drained_s:.1f} s"
    if not outcome.is_change:
        return f"{outcome.model}: somebody else has loaded what is wanted"
    if not outcome.loaded:
        return f"{outcome.model}: {', '.join(outcome.unloaded)} unloaded"
    if outcome.is_addition:
        return f"{outcome.model}: ready after {outcome.ready_s:.1f} s"
    versions = ", ".join(f"{name} version {number}" for name, number in outcome.loaded.items())
    if outcome.gap:
        return f"{outcome.model}: {versions} ready, after {outcome.ready_s:.1f} s without an answer"
    drained = "" if outcome.draining else f", what ran before gone {outcome.drained_s:.1f} s later"
    return f"{outcome.model}: {versions} ready after {outcome.ready_s:.1f} s{drained}"
