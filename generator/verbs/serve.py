"""``hf-triton serve``: generates, starts Triton, loads every model, and stays until it is stopped.

Exit codes: 0 after a graceful stop of a server that had models ready (Ctrl-C, SIGTERM or SIGHUP),
130 when stopped before that or forced by a second signal, 1 when nothing could be served, when the
server died too often, and after a stop where a model had.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from generator.errors import UsageError
from generator.models_yaml.reading import load_settings
from generator.models_yaml.server_settings import LOG_FORMATS
from generator.spec.task_folders import find_tasks
from generator.verbs.generate import Outcome, generate, refuse_conflicts

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
    _add_openai(parser)
    _add_admin(parser)
    parser.add_argument(
        "--load-timeout-s",
        type=_seconds,
        metavar="SECONDS",
        help="serve without the models that take longer to load (default: wait for all)",
    )
    _add_supervision(parser)
    parser.add_argument(
        "--log-format",
        choices=LOG_FORMATS,
        help="what stderr is written in; json: an object per line (default: log_format of "
        "models.yaml's server:, else text)",
    )
    parser.add_argument(
        "--watch",
        action="store_true",
        help="apply models.yaml, without losing a request, whenever it is saved",
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


def _add_supervision(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "staying alive",
        "A model whose Python process dies is loaded again, and a tritonserver that dies is "
        "started again: at once, then after 1, 2, 4 ... 60 seconds. The health port has /live and "
        "/ready for probes, and /metrics for Prometheus.",
    )
    group.add_argument(
        "--max-restarts",
        type=_count,
        default=5,
        metavar="N",
        help="give up a model that dies more often within ten minutes, and go on with the others; "
        "end with exit code 1 where the server does (default: 5)",
    )
    group.add_argument(
        "--health-port",
        type=_port_or_none,
        default=8003,
        metavar="PORT",
        help="where to tell of health; 0: nowhere (default: 8003)",
    )
    group.add_argument(
        "--drain-s",
        type=_seconds_or_none,
        default=0.0,
        metavar="SECONDS",
        help="when asked to stop, be not ready for so long before stopping, so that load balancers "
        "send no more (default: 0)",
    )


def _add_openai(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "OpenAI's API",
        "/v1/models, /v1/completions and /v1/chat/completions, for the openai package and all that "
        "speaks like it. Clients need a key where HF_TRITON_OPENAI_KEY or --openai-key-file sets "
        "one.",
    )
    group.add_argument(
        "--openai-port",
        type=_port,
        metavar="PORT",
        help="serve it on this port, such as 9000 (default: not at all)",
    )
    group.add_argument(
        "--openai-key-file",
        type=Path,
        metavar="FILE",
        help="the key that clients must send; without it, that in HF_TRITON_OPENAI_KEY, if any",
    )
    group.add_argument(
        "--triton-url",
        type=_address,
        metavar="HOST:PORT",
        help="serve only this API, for the Triton that runs there (its gRPC port): generate and "
        "start nothing",
    )


def _add_admin(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "changing the running server",
        "Loading and unloading models, shared memory, tracing and logging are open only to who "
        "sends the admin key: `hf-triton apply` does. It is the one in HF_TRITON_ADMIN_KEY or "
        "--admin-key-file, else a new one for every start, which only this user can read.",
    ).add_mutually_exclusive_group()
    group.add_argument(
        "--admin-key-file", type=Path, metavar="FILE", help="a file that holds the admin key"
    )
    group.add_argument(
        "--open-admin-apis",
        action="store_true",
        help="open all of that to every client, as a bare tritonserver does",
    )


def _admin_key(args: argparse.Namespace) -> str:
    """Empty where all is open. Raises ServerError or UsageError."""
    from generator.server.admin_key import new_admin_key, take_admin_key
    from generator.server.restrictions import refuse_clashes

    refuse_clashes(args.arguments, has_key=not args.open_admin_apis)
    given = take_admin_key(args.admin_key_file, os.environ)
    return "" if args.open_admin_apis else given or new_admin_key()


def _check_openai(args: argparse.Namespace) -> None:
    """Raises UsageError for options that would be ignored."""
    for flag, value in (
        ("--triton-url", args.triton_url),
        ("--openai-key-file", args.openai_key_file),
    ):
        if value is not None and args.openai_port is None:
            raise UsageError(f"{flag} needs --openai-port")
    ignored = (args.arguments, args.load_timeout_s, args.verbose, args.admin_key_file, args.watch)
    if args.triton_url and (any(ignored) or args.open_admin_apis):
        raise UsageError(
            "with --triton-url no tritonserver is started: leave out --load-timeout-s, --verbose, "
            "--watch, --admin-key-file, --open-admin-apis and arguments for tritonserver"
        )


def run(args: argparse.Namespace) -> int:
    """Serves until stopped. Raises GeneratorError where that can't begin or breaks off."""
    for argument in args.arguments:
        if not argument.startswith("-"):
            raise UsageError(f"unexpected '{argument}'; arguments for tritonserver start with '-'")
    _check_openai(args)
    # Imported here: the other verbs, and --help, need no HTTP and no processes.
    from generator.apply.file_watch import WatchedFiles
    from generator.openai_api.child_process import OpenAiProcess
    from generator.openai_api.key import take_key
    from generator.server import json_log
    from generator.server.listen import Listen
    from generator.server.process import TritonServer
    from generator.server.restart_policy import RestartPolicy
    from generator.supervision.lifecycle import ServeOptions, serve, stop_signals

    if args.log_format == "json":
        json_log.start()
    ports = (args.http_port, args.grpc_port, args.metrics_port, args.openai_port or 0)
    listen = Listen(args.host, *ports, health_port=args.health_port)
    key = take_key(args.openai_key_file, os.environ)
    if args.triton_url:
        from generator.supervision.openai_only import serve_openai_only

        return serve_openai_only(listen, args.triton_url, key, stop_signals())
    admin_key = _admin_key(args)
    listen.check()  # before anything is written
    repository = Path(args.repository)
    watched = WatchedFiles(Path(args.config)) if args.watch else None
    outcome = generate(Path(args.config), repository)
    settings = load_settings(Path(args.config))
    if settings.log_format == "json" and args.log_format is None:
        json_log.start()
    _report(outcome, args.repository)
    refuse_conflicts(outcome)
    _build_environments(outcome)
    server = TritonServer(
        repository,
        listen,
        arguments=[*settings.flags(), *args.arguments],
        verbose=args.verbose,
        admin_key=admin_key,
    )
    policy = RestartPolicy(max_restarts=args.max_restarts)
    openai_api = OpenAiProcess(listen, key, policy) if args.openai_port else None
    models = [spec.name for spec in outcome.plan.specs]
    options = ServeOptions(Path(args.config), args.load_timeout_s, policy, args.drain_s, watched)
    return serve(server, models, options, openai_api)


def _report(outcome: Outcome, repository: str) -> None:
    if outcome.written:
        names = ", ".join(model.name for model in outcome.written)
        print(f"hf-triton: generated in {repository}: {names}", file=sys.stderr)
    for note in outcome.notes:
        print(f"hf-triton: {note}", file=sys.stderr)


def _build_environments(outcome: Outcome) -> None:
    """A model that can't have its environment fails to load, and the others are served."""
    from generator.python_env.ensuring import ensure_environments

    for name, reason in ensure_environments(outcome.plan.specs, find_tasks()).items():
        print(f"hf-triton: {name}: {reason}", file=sys.stderr)


def _port(text: str) -> int:
    if not (text.isdecimal() and 1 <= int(text) <= 65535):
        raise argparse.ArgumentTypeError(f"got '{text}', expected a port from 1 to 65535")
    return int(text)


def _port_or_none(text: str) -> int:
    return 0 if text == "0" else _port(text)


def _address(text: str) -> str:
    host, _, port = text.rpartition(":")
    if not host or "/" in text or not (port.isdecimal() and 1 <= int(port) <= 65535):
        raise argparse.ArgumentTypeError(
            f"got '{text}', expected HOST:PORT of Triton's gRPC, such as 127.0.0.1:8001"
        )
    return text


def _count(text: str) -> int:
    if not (text.isdecimal() and int(text) <= 1000):
        raise argparse.ArgumentTypeError(f"got '{text}', expected a number from 0 to 1000")
    return int(text)


def _seconds_or_none(text: str) -> float:
    return 0.0 if text == "0" else _seconds(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"got '{text}', expected a positive number of seconds")
    return seconds
