"""``hf-triton generate``: writes the model repository for models.yaml."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from generator.errors import ConflictError
from generator.render.manifest import CONFIG_FILE, without_fingerprint
from generator.repository import writing as writer
from generator.repository.compare import Action, ModelPlan
from generator.repository.native_model import place_models
from generator.repository.plan import Plan, make_plan, track
from hf_triton.tritonserver.state_file import running_servers

MAX_LISTED = 5


@dataclass(frozen=True)
class Outcome:
    """The state of each folder and the written ones; ``notes`` concern files that we don't
    write.
    """

    plan: Plan
    written: tuple[ModelPlan, ...]
    conflicts: tuple[str, ...]
    notes: tuple[str, ...] = ()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--force", action="store_true", help="overwrite files that were edited by hand"
    )


def run(args: argparse.Namespace) -> int:
    """Raises ConflictError, after writing everything without conflicts."""
    outcome = generate(Path(args.config), Path(args.repository), force=args.force)
    for model in outcome.written:
        print(_describe(model))
    same = sum(model.is_current for model in outcome.plan.models)
    print(f"{args.repository}: {len(outcome.written)} written, {same} identical")
    for orphan in outcome.plan.orphans:
        message = "is no longer in models.yaml; hf-triton prune removes it"
        print(f"{orphan.folder}: {message}", file=sys.stderr)
    for note in outcome.notes:
        print(note, file=sys.stderr)
    for server in running_servers(Path(args.repository)) if outcome.written else ():
        print(
            f"{args.repository}: the server on port {server.http_port} still serves what it has "
            "loaded; hf-triton apply brings it to this without losing a request",
            file=sys.stderr,
        )
    refuse_conflicts(outcome.conflicts)
    return 0


def generate(config: Path, repository: Path, force: bool = False) -> Outcome:
    """Writes no folder of an entry of which one has a conflict, unless ``force``."""
    writer.finish_interrupted(repository)
    plan = make_plan(config, repository, keep_edits=not force)
    ready: list[ModelPlan] = []
    conflicts: list[str] = []
    for group in plan.groups:
        blocked = [one for one in group if not one.force_helps or (one.conflicts and not force)]
        if blocked:
            conflicts += [conflict for model in blocked for conflict in model.conflicts]
        else:
            ready += [model for model in group if not (model.is_current or _stays(model))]
    with writer.locked(repository):
        for model in track(ready, "writing"):
            # An existing model may be loaded on demand.
            is_there = model.folder.exists()
            with writer.locked_model(model.folder) if is_there else contextlib.nullcontext():
                writer.apply(model)
        notes = [*place_models(plan.specs, repository)] if not conflicts else []
    notes += [
        f"{model.folder / path}: edited by hand, and kept"
        for model in plan.models
        for path in model.kept
    ]
    return Outcome(plan, tuple(ready), tuple(conflicts), tuple(notes))


def refuse_conflicts(conflicts: Sequence[str], of_what: str = " for these models") -> None:
    """Raises ConflictError where there are some."""
    if conflicts:
        hint = f"nothing was written{of_what}: move your edits away, or use --force"
        lines = [f"conflict: {conflict}" for conflict in conflicts]
        raise ConflictError("\n".join([*lines, hint]))


def _describe(model: ModelPlan) -> str:
    created, updated, removed = (
        model.paths(action) for action in (Action.CREATE, Action.UPDATE, Action.REMOVE)
    )
    forced = model.paths(Action.CONFLICT)
    if not (updated or removed or forced or model.paths(Action.IDENTICAL)):
        return f"create     {model.name} ({len(created)} files)"
    changed = [
        *(f"+{path}" for path in created),
        *updated,
        *(f"-{path}" for path in removed),
        *(f"!{path}" for path in forced),
    ]
    listed = ", ".join(changed) if len(changed) <= MAX_LISTED else f"{len(changed)} files"
    return f"update     {model.name}: {listed or 'its manifest'}"


def _stays(model: ModelPlan) -> bool:
    """Returns whether a read-only folder differs only by the timestamps of a local model's files.
    Copying an image may change those, and the files are loaded in any case.
    """
    changed = [change for change in model.changes if change.action is not Action.IDENTICAL]
    return (
        [change.path for change in changed] == [CONFIG_FILE]
        and without_fingerprint(changed[0].old or b"") == without_fingerprint(changed[0].new or b"")
        and not os.access(model.folder, os.W_OK)
    )
