"""``hf-triton serve``: generates, starts Triton, loads every model, and stays until it is stopped.

Exit codes: 0 after a graceful stop of a server that had models ready (Ctrl-C, SIGTERM or SIGHUP),
130 when stopped before that or forced by a second signal, 1 when nothing could be served.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from generator.errors import UsageError
from generator.generate import Outcome, generate, refuse_conflicts

HELP = "generate, start Triton, wait until every model is ready, and print the curl lines"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds where to listen, how long to wait, and what goes on to tritonserver."""
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="address to listen on; 0.0.0.0 is every one of this machine (default: 127.0.0.1)",
    )
    for flag, port in (("--http-port", 8000), ("--grpc-port", 8001), ("--metrics-port", 8002)):
        parser.add_argument(flag, type=_port, default=port, metavar="PORT", help=f"default: {port}")
    parser.add_argument(
        "--load-timeout-s",
        type=_seconds,
        metavar="SECONDS",
        help="serve without the models that take longer to load (default: wait for all)",
    )
    parser.add_argument(
        "--verbose", action="store_true", help="pass the whole of tritonserver's log through"
    )
    parser.add_argument(
        "arguments",
        nargs="*",
        metavar="-- ARGUMENT",
        help="arguments for tritonserver itself, such as -- --log-verbose=1",
    )


def run(args: argparse.Namespace) -> int:
    """Serves until stopped. Raises GeneratorError where that can't begin or breaks off."""
    for argument in args.arguments:
        if not argument.startswith("-"):
            raise UsageError(f"unexpected '{argument}'; arguments for tritonserver start with '-'")
    # Imported here: the other verbs, and --help, need no HTTP and no processes.
    from generator.server import TritonServer
    from generator.server_listen import Listen
    from generator.serving import serve

    listen = Listen(args.host, args.http_port, args.grpc_port, args.metrics_port)
    listen.check()  # before anything is written
    repository = Path(args.repository)
    outcome = generate(Path(args.config), repository)
    _report(outcome, args.repository)
    refuse_conflicts(outcome)
    server = TritonServer(repository, listen, arguments=args.arguments, verbose=args.verbose)
    return serve(server, [spec.name for spec in outcome.plan.specs], args.load_timeout_s)


def _report(outcome: Outcome, repository: str) -> None:
    if outcome.written:
        names = ", ".join(model.name for model in outcome.written)
        print(f"hf-triton: generated in {repository}: {names}", file=sys.stderr)


def _port(text: str) -> int:
    if not (text.isdecimal() and 1 <= int(text) <= 65535):
        raise argparse.ArgumentTypeError(f"got '{text}', expected a port from 1 to 65535")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"got '{text}', expected a positive number of seconds")
    return seconds
