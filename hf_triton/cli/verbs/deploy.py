"""``hf-triton deploy``: writes files that run the models of models.yaml in containers. The targets'
modules render; this one writes and reports. Connects to no cluster, no Docker and no network.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from generator.deploy.options import add_targets
from generator.errors import EXIT_INPUT, EXIT_OK, UsageError

add_arguments = add_targets


def run(args: argparse.Namespace) -> int:
    """Raises ConflictError where files were edited by hand."""
    from generator.deploy.targets import render
    from generator.repository import writing as writer
    from generator.repository.compare import Action, compare
    from hf_triton.cli.verbs import diff
    from hf_triton.cli.verbs.generate import refuse_conflicts

    deployment = render(args)
    output = Path(args.output)
    if output.resolve() == Path(args.repository).resolve():
        raise UsageError(f"--output {output} is the model repository; expected a folder of its own")
    plan = compare(output, deployment.files)
    if args.diff:
        print(
            f"{output}: {len(deployment.files)} identical"
            if plan.is_current
            else "\n".join(diff.show_model(plan))
        )
        return EXIT_OK if plan.is_current else EXIT_INPUT
    if not (args.force and plan.force_helps):
        refuse_conflicts(plan.conflicts, of_what="")
    if not plan.is_current:
        with writer.locked(output):
            writer.apply(plan)
    same = len(plan.paths(Action.IDENTICAL))
    print(f"{output}: {len(deployment.files) - same} written, {same} identical")
    for note in deployment.notes:
        print(f"hf-triton: {note}", file=sys.stderr)
    print("\n".join(deployment.next_steps))
    return EXIT_OK
