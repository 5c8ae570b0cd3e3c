"""``hf-triton deploy``: writes files that run the models of models.yaml in containers. The targets'
modules render; this one writes and reports. Connects to no cluster, no Docker and no network.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import fields
from pathlib import Path

from generator.deploy.options import Options, options_of
from generator.errors import EXIT_INPUT, EXIT_OK, UsageError
from hf_triton.cli.places import add_places, add_switches

_TARGETS = {
    "compose": "Triton, Prometheus and Grafana with our dashboard and alert rules",
    "kubernetes": "a Deployment and what belongs to it, ready for `kubectl apply -k`",
    "kserve": "an InferenceService and what belongs to it, for `kubectl apply -k`",
}
_EXAMPLES = """\
examples:
  hf-triton deploy compose --device cpu      # Triton, Prometheus, Grafana on this machine
  hf-triton deploy kubernetes --image my-registry/hf-triton:gpu --max-replicas 8
  hf-triton deploy kubernetes --config chat.yaml --name chat --output deploy/chat
  hf-triton deploy kserve --image my-registry/hf-triton:gpu
  hf-triton deploy kubernetes --diff         # exit 1 when the folder is stale

Files edited by hand are never overwritten without --force. No file holds a secret: tokens and keys
come by environment (Compose) or as Secrets (Kubernetes); the commands to make those are printed.
"""
_SWITCHES = {
    "--diff": "write nothing; show what would change, exit 1 if so",
    "--force": "overwrite files edited by hand",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EXAMPLES
    targets = parser.add_subparsers(dest="target", required=True, metavar="TARGET")
    for name, about in _TARGETS.items():
        sentence, folder = f"{about[0].upper()}{about[1:]}.", f"deploy/{name}"
        target = targets.add_parser(name, help=about, description=sentence)
        add_places(target)
        told = f"where the files go (default: {folder})"
        target.add_argument("--output", default=folder, metavar="FOLDER", help=told)
        add_switches(target, _SWITCHES)
        own = "compose" if name == "compose" else "cluster"
        for one in fields(Options):
            if one.metadata.get("group") in ("", own):
                target.add_argument(f"--{one.name.replace('_', '-')}", **one.metadata["argument"])


def run(args: argparse.Namespace) -> int:
    """Raises SpecError for models.yaml, UsageError for flags, ConflictError where files were edited
    by hand.
    """
    from generator.deploy import compose, kubernetes
    from generator.deploy.server import Server
    from generator.models_yaml.reading import load
    from generator.repository import writing as writer
    from generator.repository.compare import Action, compare
    from hf_triton.cli.verbs import diff
    from hf_triton.cli.verbs.generate import refuse_conflicts

    asked = options_of(args)
    server = Server(tuple(load(Path(asked.config))), asked)
    target = compose if asked.target == "compose" else kubernetes
    files, notes = dict(sorted(target.files(server).items())), [*server.notes()]
    next_steps, output = target.next_steps(server), Path(asked.output)
    if output.resolve() == Path(args.repository).resolve():
        raise UsageError(f"--output {output} is the model repository; expected a folder of its own")
    plan = compare(output, files)
    if args.diff:
        print(
            f"{output}: {len(files)} identical"
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
    print(f"{output}: {len(files) - same} written, {same} identical")
    for note in notes:
        print(f"hf-triton: {note}", file=sys.stderr)
    print("\n".join(next_steps))
    return EXIT_OK
