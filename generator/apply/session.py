"""One apply from models.yaml to the record of what is served: locks, plans, carries out, tells."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from generator import repository as writer
from generator import served_record
from generator.apply.applying import Applied, Applying
from generator.apply.carry_out import Settings
from generator.apply.control import Control
from generator.apply.planning import ApplyPlan, plan_apply
from generator.apply.rollback import plan_rollback
from generator.apply.target import Target
from generator.errors import EXIT_INPUT, EXIT_INTERRUPTED, EXIT_OK
from generator.native_model import place_models
from generator.plan import Plan, make_plan
from generator.served_record import LastChange, ServedRecord
from generator.templates import find_tasks

DRAIN_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class ApplyOptions:
    """As the command line has them; ``wait`` for whoever else writes to the repository."""

    dry_run: bool = False
    force: bool = False
    prune: bool = False
    wait: bool = False
    drain_timeout_s: float = DRAIN_TIMEOUT_S


def apply_now(config: Path, repository: Path, target: Target, options: ApplyOptions) -> int:
    """Brings the server to what models.yaml says; returns the exit code. Raises GeneratorError
    before anything is changed.
    """
    control = Control(target.api)
    with _locked(repository, options):
        plan = make_plan(config, repository)
        wanted = plan_apply(plan, repository, control, force=options.force)
        _show(wanted, target)
        if options.dry_run or wanted.is_nothing:
            return EXIT_OK if wanted.is_nothing else EXIT_INPUT
        settings = Settings(options.drain_timeout_s, options.force, _placer(plan, repository))
        applied = Applying(control, settings, tell, warn).run(wanted, repository)
        _record(repository, wanted, applied, applied.last_change)
        _tell_orphans(plan, applied, options)
    return _end(wanted, applied, target)


def roll_back(repository: Path, target: Target, options: ApplyOptions) -> int:
    """Takes back what the last apply did; returns the exit code. Raises GeneratorError before
    anything is changed.
    """
    control = Control(target.api)
    with _locked(repository, options):
        wanted = plan_rollback(repository, control)
        _show(wanted, target)
        if options.dry_run:
            return EXIT_INPUT
        settings = Settings(options.drain_timeout_s, force=True)
        applied = Applying(control, settings, tell, warn).run(wanted, repository)
        _record(repository, wanted, applied, LastChange())
    warn("models.yaml still asks for the newer state: change it too, or apply brings that back")
    return _end(wanted, applied, target)


def tell(line: str) -> None:
    """A result."""
    print(line, flush=True)


def warn(line: str) -> None:
    """A message."""
    sys.stderr.write(f"hf-triton: {line}\n")  # in one piece: other threads write too
    sys.stderr.flush()


def _locked(repository: Path, options: ApplyOptions) -> AbstractContextManager[None]:
    return (writer.locked_when_free if options.wait else writer.locked)(repository)


def _show(plan: ApplyPlan, target: Target) -> None:
    for line in plan.lines():
        tell(line)
    if plan.is_nothing:
        tell(f"{target.name} runs what is wanted: nothing to do")


def _placer(plan: Plan, repository: Path) -> Callable[[str], None]:
    specs, tasks = {spec.name: spec for spec in plan.specs}, find_tasks()

    def place(model: str) -> None:
        for note in place_models([specs[model]], tasks, repository):
            warn(note)

    return place


def _record(repository: Path, plan: ApplyPlan, applied: Applied, last: LastChange) -> None:
    """What is served from here on, and what a rollback takes back; raises nothing over that."""
    before = served_record.read(repository) or ServedRecord()
    models = set(_served(plan, applied, before))
    if last.is_empty and applied.last_change.is_empty:
        last = before.last  # nothing came of it
    served_record.write(repository, ServedRecord(tuple(sorted(models)), last))


def _served(plan: ApplyPlan, applied: Applied, before: ServedRecord) -> Iterator[str]:
    loaded = {name for outcome in applied.outcomes for name in outcome.loaded}
    for group in plan.groups:
        if group.folders[0].served.ready or group.name in loaded or group.name in before.models:
            yield group.name


def _tell_orphans(plan: Plan, applied: Applied, options: ApplyOptions) -> None:
    """Folders on disk that no model needs any more."""
    for orphan in plan.orphans:
        if options.prune and not applied.failures and not applied.interrupted:
            writer.remove(orphan)
            tell(f"{orphan.folder}: pruned")
        else:
            warn(f"{orphan.folder}: is no longer in models.yaml; hf-triton prune removes it")


def _end(plan: ApplyPlan, applied: Applied, target: Target) -> int:
    good = [outcome for outcome in applied.outcomes if not outcome.failure]
    removed = {removed.name for removed in plan.removed}
    counts = {
        "changed": sum(one.model not in removed and not one.is_addition for one in good),
        "added": sum(one.is_addition for one in good),
        "removed": sum(one.model in removed for one in good),
        "routed": len(applied.routing),
        "unchanged": sum(group.is_nothing for group in plan.groups),
        "failed": len(applied.failures),
    }
    told = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    tell(f"{target.name}: {told or 'nothing done'}")
    if applied.interrupted:
        return EXIT_INTERRUPTED
    return EXIT_INPUT if applied.failures else EXIT_OK
