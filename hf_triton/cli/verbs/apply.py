"""``hf-triton apply``: updates a running server to models.yaml without losing a request.

Exit codes: 0 if the server runs what models.yaml says, 1 if the input has a mistake, a model
failed, or ``--dry-run`` found changes, 130 if it was interrupted.
"""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path

from generator.errors import ServerError
from generator.flag_values import port, zero_or_more
from hf_triton.cli.places import add_switches


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EXAMPLE
    add_switches(parser, _SWITCHES)
    parser.add_argument(
        "--http-port",
        type=port,
        metavar="PORT",
        help="HTTP port of the server, if several run on the repository",
    )
    parser.add_argument(
        "--drain-timeout-s",
        type=zero_or_more,
        default=60.0,
        metavar="SECONDS",
        help="how long to wait for the last requests of a replaced version; it is unloaded after "
        "them in any case (default: 60)",
    )


_SWITCHES = {
    "--dry-run": "print the changes without making them; exit 1 if any",
    "--wait": "wait while another hf-triton writes to the repository (default: fail)",
    "--force": "overwrite files that were edited by hand",
    "--allow-gap": "where memory does not hold two copies of a model, unload the old one before "
    "the new one is loaded: its requests wait meanwhile (default: change nothing)",
}
_EXAMPLE = """\
A changed model comes up as a new version beside the one that answers, takes over once it is ready,
and the old one ends with its last request. One that fails to load leaves the old one serving. New
models are loaded, those that models.yaml no longer names are unloaded; a change of a canary's
weights alone loads nothing.

A model whose second copy finds no memory, as on a GPU that the first has filled, is not changed
without --allow-gap: then the old copy is unloaded first, and loaded again if the new one fails.

  hf-triton apply --dry-run                 # what would be done?
  hf-triton apply                           # do it
  docker exec CONTAINER hf-triton apply     # of a server in a container
"""


def run(args: argparse.Namespace) -> int:
    """Raises GeneratorError where the change could not begin."""
    # Imported here: --help needs none of it.
    from generator.models_yaml.reading import load
    from hf_triton.serving.apply.model_update import ApplyOptions
    from hf_triton.serving.apply.session import Session
    from hf_triton.serving.apply.target import running_target

    repository = Path(args.repository)
    load(Path(args.config))  # report all mistakes in it first
    if not repository.is_dir():
        raise ServerError(f"{repository}: no such folder: start a server with hf-triton serve")
    target = running_target(repository, args.http_port)
    options = ApplyOptions(**{one.name: getattr(args, one.name) for one in fields(ApplyOptions)})
    return Session(repository, target, options).apply(Path(args.config))
