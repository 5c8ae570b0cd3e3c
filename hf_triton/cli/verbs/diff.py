"""``hf-triton diff``: shows what `generate` would change; writes nothing, exits 1 when stale."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Iterator
from pathlib import Path

from generator.errors import EXIT_INPUT, EXIT_OK
from generator.repository.compare import Action, Change, ModelPlan
from generator.repository.plan import make_plan
from generator.repository.writing import Removal


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Has no arguments of its own."""


def run(args: argparse.Namespace) -> int:
    """Prints a unified diff of each file that would change."""
    plan = make_plan(Path(args.config), Path(args.repository))
    for model in plan.models:
        if not model.is_current:
            print("\n".join(show_model(model)))
    for orphan in plan.orphans:
        print("\n".join(show_orphan(orphan)))
    if plan.is_current:
        print(f"{args.repository}: {len(plan.models)} identical")
    return EXIT_OK if plan.is_current else EXIT_INPUT


def show_model(model: ModelPlan) -> Iterator[str]:
    """The diff lines of one model."""
    if model.blocked:
        yield f"conflict {model.conflicts[0]}"
    for path in model.kept:
        yield f"edited {model.folder / path}: by hand, and kept: servers load it anew"
    changes = [change for change in model.changes if change.action is not Action.IDENTICAL]
    for change in changes:
        reason = f": {change.reason}" if change.reason else ""
        yield f"{change.action.value} {model.folder / change.path}{reason}"
        if change.action is not Action.REMOVE:
            yield from show_change(change, f"{model.folder.name}/{change.path}")
    if not changes and not model.blocked:
        yield f"update {model.folder}: its manifest"


def show_change(change: Change, path: str) -> Iterator[str]:
    """The unified diff of one file."""
    old, new = _lines(change.old), _lines(change.new)
    before = f"a/{path}" if change.old is not None else "/dev/null"
    after = f"b/{path}" if change.new is not None else "/dev/null"
    return difflib.unified_diff(old, new, before, after, lineterm="")


def show_orphan(orphan: Removal) -> Iterator[str]:
    """The lines for a folder that `prune` would remove."""
    yield f"remove {orphan.folder}: no longer in models.yaml (hf-triton prune)"


def _lines(content: bytes | None) -> list[str]:
    return (content or b"").decode(errors="backslashreplace").splitlines()
