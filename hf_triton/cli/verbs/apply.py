"""``hf-triton apply``: updates a running server to models.yaml without losing a request.

Exit codes: 0 if the server runs what models.yaml says, 1 if the input has a mistake, a model
failed, or ``--dry-run`` found changes, 130 if it was interrupted.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from generator.errors import ServerError, UsageError
from generator.flag_values import address, port, zero_or_more


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EXAMPLE
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="print the changes without making them; exit 1 if any",
    )
    parser.add_argument(
        "--rollback",
        action="store_true",
        help="undo the last apply; models.yaml is not read",
    )
    group = parser.add_argument_group(
        "which server", "By default the server that hf-triton serve runs on --repository."
    )
    group.add_argument(
        "--http-port",
        type=port,
        metavar="PORT",
        help="HTTP port of the server, if several run on the repository",
    )
    group.add_argument(
        "--url",
        type=address("Triton's HTTP, such as gpu-7:8000"),
        metavar="HOST:PORT",
        help="HTTP address of a server, such as one in a container: it must read its models from "
        "the same files as --repository, and its admin key is needed",
    )
    group.add_argument(
        "--grpc-port",
        type=port,
        metavar="PORT",
        help="gRPC port of --url, through which models are loaded: over HTTP, clients would wait "
        "for the load (default: the HTTP port plus 1)",
    )
    group.add_argument(
        "--admin-key-file",
        type=Path,
        metavar="FILE",
        help="a file with the admin key of --url (default: the key in HF_TRITON_ADMIN_KEY)",
    )
    parser.add_argument(
        "--wait",
        action="store_true",
        help="wait while another hf-triton writes to the repository (default: fail)",
    )
    parser.add_argument(
        "--force", action="store_true", help="overwrite files that were edited by hand"
    )
    parser.add_argument(
        "--allow-gap",
        action="store_true",
        help="where memory does not hold two copies of a model, unload the old one before the new "
        "one is loaded: its callers get errors meanwhile (default: change nothing)",
    )
    parser.add_argument(
        "--prune",
        action="store_true",
        help="also remove the folders of models that models.yaml no longer names",
    )
    parser.add_argument(
        "--drain-timeout-s",
        type=zero_or_more,
        default=60.0,
        metavar="SECONDS",
        help="how long to wait for the last requests of a replaced version; it is unloaded after "
        "them in any case (default: 60)",
    )


_EXAMPLE = """\
A changed model comes up as a new version beside the one that answers, takes over once it is ready,
and the old one ends with its last request. One that fails to load leaves the old one serving. New
models are loaded, those that models.yaml no longer names are unloaded; a change of a canary's
weights alone loads nothing.

A model whose second copy finds no memory, as on a GPU that the first has filled, is not changed
without --allow-gap: then the old copy is unloaded first, and loaded again if the new one fails.

  hf-triton apply --dry-run                 # what would be done?
  hf-triton apply                           # do it
  hf-triton apply --rollback                # undo it
  HF_TRITON_ADMIN_KEY=... hf-triton apply --url gpu-7:8000   # a server that reads the same folder
  hf-triton serve --watch                   # does it by itself whenever models.yaml is saved
"""


def run(args: argparse.Namespace) -> int:
    """Raises UsageError, and GeneratorError where the change could not begin."""
    if args.url and args.http_port:
        raise UsageError("--url names the server's port already: leave --http-port out")
    for flag, value in (("--admin-key-file", args.admin_key_file), ("--grpc-port", args.grpc_port)):
        if value and not args.url:
            raise UsageError(f"{flag} needs --url: for a local server it is found without it")
    if args.rollback and (args.force or args.prune):
        raise UsageError("--rollback takes neither --force nor --prune")
    # Imported here: --help needs none of it.
    from generator.models_yaml.reading import load
    from hf_triton.serving.apply.session import ApplyOptions, Session
    from hf_triton.serving.apply.target import remote_target, running_target
    from hf_triton.tritonserver.admin_key import take_admin_key

    repository = Path(args.repository)
    if not args.rollback:
        load(Path(args.config))  # report all mistakes in it first
    if not repository.is_dir():
        raise ServerError(f"{repository}: no such folder: start a server with hf-triton serve")
    if args.url:
        grpc_port = args.grpc_port or int(args.url.rpartition(":")[2]) + 1
        key = take_admin_key(args.admin_key_file, os.environ) or ""
        target = remote_target(args.url, grpc_port, key)
    else:
        target = running_target(repository, args.http_port)
    target.check(repository)
    options = ApplyOptions(
        dry_run=args.dry_run,
        force=args.force,
        prune=args.prune,
        wait=args.wait,
        drain_timeout_s=args.drain_timeout_s,
        allow_gap=args.allow_gap,
    )
    session = Session(repository, target, options)
    return session.roll_back() if args.rollback else session.apply(Path(args.config))
