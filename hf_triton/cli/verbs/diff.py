"""``hf-triton diff``: shows what `generate` would change; writes nothing, exits 1 when stale."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Iterator
from pathlib import Path

from generator.errors import EXIT_INPUT, EXIT_OK
from generator.repository.compare import Action, ModelPlan
from generator.repository.plan import make_plan


def run(args: argparse.Namespace) -> int:
    """Prints a unified diff of each file that would change."""
    plan = make_plan(Path(args.config), Path(args.repository))
    for model in plan.models:
        if not model.is_current:
            print("\n".join(show_model(model)))
    for orphan in plan.orphans:
        print(f"remove {orphan.folder}: no longer in models.yaml (hf-triton prune)")
    if plan.is_current:
        print(f"{args.repository}: {len(plan.models)} identical")
    return EXIT_OK if plan.is_current else EXIT_INPUT


def show_model(model: ModelPlan) -> Iterator[str]:
    if model.blocked:
        yield f"conflict {model.conflicts[0]}"
    for path in model.kept:
        yield f"edited {model.folder / path} by hand, and kept: servers reload it"
    changes = [change for change in model.changes if change.action is not Action.IDENTICAL]
    for change in changes:
        reason = f": {change.reason}" if change.reason else ""
        yield f"{change.action.value} {model.folder / change.path}{reason}"
        if change.action is not Action.REMOVE:
            path = f"{model.folder.name}/{change.path}"
            before = f"a/{path}" if change.old is not None else "/dev/null"
            after = f"b/{path}" if change.new is not None else "/dev/null"
            old, new = _lines(change.old), _lines(change.new)
            yield from difflib.unified_diff(old, new, before, after, lineterm="")
    if not changes and not model.blocked:
        yield f"update {model.folder}: its manifest"


def _lines(content: bytes | None) -> list[str]:
    return (content or b"").decode(errors="backslashreplace").splitlines()
