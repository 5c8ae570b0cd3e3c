"""``hf-triton prune``: removes generated folders whose models are not in models.yaml."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from generator.models_yaml.reading import load_unpinned
from generator.repository import writing as writer
from generator.repository.plan import find_orphans
from hf_triton.cli.places import add_switches


def add_arguments(parser: argparse.ArgumentParser) -> None:
    switches = {
        "--dry-run": "print what would be removed and remove nothing",
        "--weights": "also remove their downloaded weights (hf_cache)",
        "--force": "also remove files that were edited by hand",
    }
    add_switches(parser, switches)


def run(args: argparse.Namespace) -> int:
    """Removes the generated files of those folders; prints what stays and why."""
    repository = Path(args.repository)
    specs = load_unpinned(Path(args.config))
    if not args.dry_run:
        writer.finish_interrupted(repository)
    removals = list(find_orphans(repository, specs, args.weights, args.force))
    for removal in removals:
        count = len(removal.removed)
        files = f"{count} file{'s' * (count != 1)}"
        weights = " and its weights" if removal.removes_weights else ""
        verb = "would remove" if args.dry_run else "remove    "
        print(f"{verb} {removal.folder} ({files}{weights})")
        for path, reason in removal.kept:
            print(f"kept       {removal.folder / path}: {reason}", file=sys.stderr)
    if removals and not args.dry_run:
        with writer.locked(repository):
            for removal in removals:
                writer.remove(removal)
    if not removals:
        print(f"{repository}: nothing to prune")
    return 0
