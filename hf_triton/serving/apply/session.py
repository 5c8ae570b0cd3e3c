"""One apply, from models.yaml to the record of what is served: locks the repository, plans, changes
several models at once, then writes routing, then unloads removed models. Prints a line for each
model; a model that fails does not stop the others.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path

from generator.errors import EXIT_INPUT, EXIT_INTERRUPTED, EXIT_OK, GeneratorError, NoRoomError
from generator.models_yaml.reading import load
from generator.render.manifest import ROUTING_FILE
from generator.repository import writing as writer
from generator.repository.compare import ModelPlan, read_file
from generator.repository.native_model import place_models
from generator.repository.plan import make_plan
from hf_triton.serving.apply import model_update as models
from hf_triton.serving.apply.memory import with_shortages
from hf_triton.serving.apply.model_update import ApplyOptions, Outcome, compare_again, tell
from hf_triton.serving.apply.planning import ApplyPlan, GroupChange, plan_apply
from hf_triton.serving.apply.target import Target
from hf_triton.serving.python_env import ensure_environments
from hf_triton.tritonserver import adapters
from hf_triton.tritonserver.http_api import NUM_LOADERS
from hf_triton.tritonserver.log import say
from hf_triton.tritonserver.state_file import served_models, write_served
from hf_triton.tritonserver.system_calls import start_threads

_Job = Callable[[], Outcome]  # a model's change or removal

_POLL_S = 0.25
_REMIND_EVERY_S = 10.0
# Long enough for running models to take up a new routing.json: they read it twice a second
# (hf_triton/runtime/routing/router.py).
ROUTING_IS_READ_S = 2.0
_NO_ROOM = (
    "there is no room for a second copy beside the one that answers: nothing was changed. Run "
    "hf-triton apply --allow-gap to unload the old copy before the new one is loaded (requests "
    "wait until it is ready), or lower kv_cache_gib until two copies fit"
)


class Session:
    """One apply of a server. Prints a line for each model that is done or failed."""

    def __init__(self, repository: Path, target: Target, options: ApplyOptions) -> None:
        self._repository, self._target, self._options = repository, target, options
        self._stopping = threading.Event()  # set: the apply is interrupted
        self._outcomes: list[Outcome] = []
        self._failures: dict[str, str] = {}
        self._num_routed = self._num_with_adapters = 0

    def apply(self, config: Path) -> int:
        """Returns the exit code. Raises GeneratorError before anything is changed."""
        options, repository = self._options, self._repository
        if not options.dry_run:
            # It takes minutes: others may generate meanwhile. A model whose environment can't be
            # built fails to load later, and its old version goes on serving.
            for name, reason in ensure_environments(load(config)).items():
                say(f"{name}: {reason}")
            writer.finish_interrupted(repository)
        with writer.locked(repository, math.inf if options.wait else 0.0):
            self._models_before = set(served_models(repository) or ())
            plan = make_plan(config, repository, keep_edits=not options.force)
            wanted = plan_apply(plan, repository, self._target, force=options.force)
            wanted = self._look_for_room(wanted)
            if wanted.is_nothing and not options.dry_run:
                self._record(wanted, ())
            if wanted.is_nothing or options.dry_run:
                return EXIT_OK if wanted.is_nothing else EXIT_INPUT
            specs = {spec.name: spec for spec in plan.specs}

            def place(model: str) -> None:
                for note in place_models([specs[model]], repository):
                    say(note)

            self._carry_out(wanted, place)
            for orphan in plan.orphans:
                message = "is no longer in models.yaml; hf-triton prune removes it"
                say(f"{orphan.folder}: {message}")
        return self._end(wanted)

    def stop(self) -> None:
        """Starts no further model; the apply counts as interrupted."""
        self._stopping.set()

    def _look_for_room(self, plan: ApplyPlan) -> ApplyPlan:
        """The plan with what memory lacks, shown. Raises NoRoomError where that is not allowed."""
        plan = with_shortages(plan, self._target.api.metrics())
        for line in plan.lines():
            tell(line)
        if plan.is_nothing:
            tell(f"{self._target.name} is up to date: nothing to do")
        if plan.shortages and not (self._options.allow_gap or self._options.dry_run):
            raise NoRoomError(f"{', '.join(plan.shortages)}: {_NO_ROOM}")
        return plan

    def _carry_out(self, plan: ApplyPlan, place: Callable[[str], None]) -> None:
        for group in plan.groups:
            if group.refusal:
                self._fail(group.name, group.refusal)
        going = [group for group in plan.groups if not group.refusal]
        batches: list[list[_Job]] = [[]]  # all others at once, then one by one what has little room
        for group in going:
            if group.updates or group.obsolete:
                gap = group.name in plan.shortages
                plans = [folder.plan for folder in group.folders]
                args = (plans, group.obsolete, self._target, self._options, place)
                job = partial(models.update_model, *args, gap=gap)
                if gap or group.name in plan.one_by_one:
                    batches.append([job])
                else:
                    batches[0].append(job)
        try:
            for batch in batches:
                if not self._stopping.is_set():
                    self._run_jobs(batch)
            for group in going:
                if not self._stopping.is_set() and group.name not in self._failures:
                    self._write_rest(group)
            if plan.removed and not self._stopping.is_set():
                # Else the supervisor would load again what is unloaded.
                self._record(plan, plan.removed)
                if self._num_routed:  # else requests would be routed to a model being unloaded
                    self._stopping.wait(ROUTING_IS_READ_S)
                common = (self._repository, self._target, self._options)
                removed = plan.removed.values()
                self._run_jobs([partial(models.remove_model, one, *common) for one in removed])
        finally:
            gone = [one.model for one in self._outcomes if one.is_removal and not one.failure]
            self._record(plan, gone)

    def _run_jobs(self, jobs: Sequence[_Job]) -> None:
        """Runs the jobs, several at once, and reports each. After a first interrupt the jobs under
        way are finished; a second one is raised.
        """
        waiting, done = iter(jobs), queue.SimpleQueue[Outcome | Exception]()

        def work() -> None:
            try:
                for job in waiting:
                    if self._stopping.is_set():
                        return
                    done.put(job())
            except Exception as error:  # noqa: BLE001, a bug of ours is raised where it is seen
                done.put(error)

        threads = start_threads(work, min(NUM_LOADERS, len(jobs)))
        try:
            self._collect(threads, done)
        except KeyboardInterrupt:
            self.stop()
            say("interrupted: finishing the models under way; Ctrl-C again leaves them")
            self._collect(threads, done)

    def _collect(
        self, threads: Sequence[threading.Thread], done: queue.SimpleQueue[Outcome | Exception]
    ) -> None:
        remind_at = time.monotonic() + _REMIND_EVERY_S
        while any(thread.is_alive() for thread in threads) or not done.empty():
            try:
                outcome = done.get(timeout=_POLL_S)
            except queue.Empty:
                if time.monotonic() > remind_at:
                    remind_at = time.monotonic() + _REMIND_EVERY_S
                    say("still working: models load, or answer their last requests")
                continue
            if isinstance(outcome, Exception):
                self.stop()
                raise outcome
            self._outcomes.append(outcome)
            if outcome.failure:
                self._fail(outcome.model, outcome.failure)
            else:
                tell(_result_line(outcome))
            for draining in outcome.draining:
                tell(f"{draining} still answers requests and is unloaded after them")

    def _fail(self, model: str, reason: str) -> None:
        self._failures[model] = reason
        say(f"model '{model}' failed: {reason}")

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
            served = self._target.served([one.name for one in group.folders])
            if any(one.ready for one in served.values()):
                adapters.change(plan, group.name)
                self._num_with_adapters += 1
                tell(f"{folder.name}: serves the new list of adapters, nothing was loaded")
                return
        before = read_file(folder / ROUTING_FILE)
        writer.apply(plan)
        if before == read_file(folder / ROUTING_FILE):
            tell(f"{folder.name}: written, nothing to load")
        else:
            self._num_routed += 1
            tell(f"{folder.name}: routing written; the running model reads it")

    def _end(self, plan: ApplyPlan) -> int:
        good = [one for one in self._outcomes if one.is_change and not one.failure]
        kept = [one for one in good if one.model not in plan.removed]
        counts = {
            "changed": sum(not one.is_addition for one in kept),
            "added": sum(one.is_addition for one in good),
            "removed": len(good) - len(kept),
            "routed": self._num_routed,
            "with other adapters": self._num_with_adapters,
            "unchanged": sum(group.is_nothing for group in plan.groups),
            "failed": len(self._failures),
        }
        summary = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
        tell(f"{self._target.name}: {summary or 'nothing done'}")
        if self._stopping.is_set():
            return EXIT_INTERRUPTED
        return EXIT_INPUT if self._failures else EXIT_OK

    def _record(self, plan: ApplyPlan, removed: Collection[str]) -> None:
        """Records the models that are served now, without those that are being or were
        ``removed``: after an interrupt others of ``plan.removed`` stay loaded.
        """
        loaded = {name for outcome in self._outcomes for name in outcome.loaded}
        groups = {group.name: group for group in plan.groups}
        served = self._models_before & (groups.keys() | plan.removed.keys()) | {
            name
            for name, group in groups.items()
            if name in loaded
            or group.folders[0].served.ready
            or (group.is_loaded_later and name not in self._failures)
        }
        try:
            write_served(self._repository, served - set(removed))
        except GeneratorError as error:  # such as a full disk
            say(f"the list of served models could not be written: {error}")


def _result_line(outcome: Outcome) -> str:
    if outcome.is_removal:
        return f"{outcome.model}: unloaded after {outcome.drained_s:.1f} s"
    if not outcome.is_change:
        return f"{outcome.model}: already loaded by another command"
    if not outcome.loaded:
        return f"{outcome.model}: {', '.join(outcome.unloaded)} unloaded"
    if outcome.is_addition:
        return f"{outcome.model}: ready after {outcome.ready_s:.1f} s"
    versions = ", ".join(f"{name} version {number}" for name, number in outcome.loaded.items())
    if outcome.gap:
        return f"{outcome.model}: {versions} ready, after {outcome.ready_s:.1f} s without an answer"
    drained = "" if outcome.draining else f", the old one unloaded {outcome.drained_s:.1f} s later"
    return f"{outcome.model}: {versions} ready after {outcome.ready_s:.1f} s{drained}"
