"""``hf-triton serve``: generates, starts Triton, loads every model, and serves until it is stopped.

Exit codes: 0 after a graceful stop (Ctrl-C, SIGTERM or SIGHUP) of a server that had models ready;
130 if it was stopped before, or forced by a second signal; 1 if nothing could be served, or if the
server or a model failed too often to start.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from generator.errors import UsageError
from generator.models_yaml.reading import load_settings
from generator.models_yaml.server_settings import LOG_FORMATS, ServerSettings
from generator.spec.task_folders import find_tasks
from generator.verbs.generate import Outcome, generate, refuse_conflicts

if TYPE_CHECKING:
    from generator.proxy.settings import Access, Caller

HELP = "generate, start Triton, wait until every model is ready, and print the curl lines"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds where to listen, how long to wait, and what goes on to tritonserver."""
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="address to listen on; 0.0.0.0: all of this machine (default: 127.0.0.1)",
    )
    for flag, port in (("--http-port", 8000), ("--grpc-port", 8001), ("--metrics-port", 8002)):
        parser.add_argument(flag, type=_port, default=port, metavar="PORT", help=f"default: {port}")
    _add_callers(parser)
    _add_openai(parser)
    _add_admin(parser)
    parser.add_argument(
        "--load-timeout-s",
        type=_seconds,
        metavar="SECONDS",
        help="serve without models that take longer to load (default: wait for all)",
    )
    _add_supervision(parser)
    parser.add_argument(
        "--log-format",
        choices=LOG_FORMATS,
        help="format of stderr; json: one object per line (default: log_format in the server: "
        "block of models.yaml, else text)",
    )
    parser.add_argument(
        "--watch",
        action="store_true",
        help="apply models.yaml, without losing a request, whenever it is saved",
    )
    parser.add_argument("--verbose", action="store_true", help="show tritonserver's whole log")
    parser.add_argument(
        "arguments",
        nargs="*",
        metavar="-- ARGUMENT",
        help="arguments for tritonserver itself, such as -- --log-verbose=1",
    )


def _add_callers(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "callers",
        "Every request to Triton's ports passes a proxy, which refuses what could end the server. "
        "The server: block of models.yaml has max_body_mib, limits, cors and tls.",
    )
    group.add_argument(
        "--api-keys-file",
        type=Path,
        metavar="FILE",
        help="answer only callers that send one of these keys, 'Authorization: Bearer KEY': a line "
        "for each, 'NAME KEY', and if you like requests_per_minute=N and concurrent_requests=N "
        "after it (default: HF_TRITON_API_KEYS with such lines, if set; else everybody)",
    )


def _add_supervision(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "staying alive",
        "A model whose Python process dies is loaded again, and a tritonserver that dies is "
        "started again, for ever: at once, then after 1, 2, 4 ... 60 seconds. The health port has "
        "/live and /ready for probes, and /metrics for Prometheus.",
    )
    group.add_argument(
        "--max-restarts",
        type=_count,
        default=5,
        metavar="N",
        help="give up a model that fails to load more often in a row, and serve the others; deaths "
        "of what was ready don't count. A tritonserver that dies more often in a row before it has "
        "loaded all models for the first time ends serve with exit code 1 (default: 5)",
    )
    group.add_argument(
        "--health-port",
        type=_port_or_none,
        default=8003,
        metavar="PORT",
        help="port of /live, /ready and /metrics; 0: none (default: 8003)",
    )
    group.add_argument(
        "--drain-s",
        type=_seconds_or_none,
        default=0.0,
        metavar="SECONDS",
        help="after a stop signal, report not ready for this long before stopping, so that load "
        "balancers stop sending (default: 0)",
    )


def _add_openai(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "OpenAI's API",
        "/v1/models, /v1/completions, /v1/chat/completions and /v1/embeddings, for the openai "
        "package and other clients of that API. Clients need a key if HF_TRITON_OPENAI_KEY or "
        "--openai-key-file sets one.",
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
        help="a file with the key that clients must send (default: HF_TRITON_OPENAI_KEY, if set)",
    )
    group.add_argument(
        "--triton-url",
        type=_address,
        metavar="HOST:PORT",
        help="serve only this API, for the Triton with this gRPC address; generate and start "
        "nothing else",
    )


def _add_admin(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "changing the running server",
        "Triton's APIs for loading models, shared memory, tracing and logging need the admin key, "
        "which `hf-triton apply` sends. It comes from HF_TRITON_ADMIN_KEY or --admin-key-file; "
        "otherwise every start makes a new one, which only this user can read.",
    ).add_mutually_exclusive_group()
    group.add_argument(
        "--admin-key-file", type=Path, metavar="FILE", help="a file that holds the admin key"
    )
    group.add_argument(
        "--open-admin-apis",
        action="store_true",
        help="open these APIs to every client, as tritonserver itself does",
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
    keys = (args.admin_key_file, args.api_keys_file)
    ignored = (args.arguments, args.load_timeout_s, args.verbose, args.watch, *keys)
    if args.triton_url and (any(ignored) or args.open_admin_apis):
        raise UsageError(
            "with --triton-url no tritonserver is started: leave out --load-timeout-s, --verbose, "
            "--watch, --api-keys-file, --admin-key-file, --open-admin-apis and arguments for "
            "tritonserver"
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
    from generator.proxy.api_keys import take_api_keys
    from generator.proxy.child_process import proxies
    from generator.server import json_log
    from generator.server.listen import Listen, socket_folder
    from generator.server.process import TritonServer
    from generator.server.restart_policy import RestartPolicy
    from generator.supervision.children import Children
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
    callers = take_api_keys(args.api_keys_file, os.environ)
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
    policy = RestartPolicy(max_restarts=args.max_restarts)
    models = [spec.name for spec in outcome.plan.specs]
    options = ServeOptions(Path(args.config), args.load_timeout_s, policy, args.drain_s, watched)
    access = _access(settings, callers, Path(args.config).resolve().parent)
    with socket_folder() as sockets:
        listen = dataclasses.replace(listen, sockets=sockets)
        server = TritonServer(
            repository,
            listen,
            arguments=[*settings.flags(), *args.arguments],
            verbose=args.verbose,
            admin_key=admin_key,
        )
        openai_api = (
            OpenAiProcess(listen, key, access, policy, repository) if args.openai_port else None
        )
        children = Children(proxies(listen, access, policy), openai_api, access)
        return serve(server, models, options, children)


def _access(settings: ServerSettings, callers: tuple[Caller, ...], base: Path) -> Access:
    """Who may ask on the public ports. Raises ServerError for TLS files that can't be used."""
    from generator.proxy.settings import Access, Limits, Tls
    from generator.proxy.tls import tls_context

    files, limits = settings.tls, settings.limits
    tls = Tls(str(base / files.certificate), str(base / files.key)) if files else None
    tls_context(tls)
    return Access(
        callers=callers,
        limits=Limits(limits.requests_per_minute, limits.concurrent_requests),
        cors=settings.cors,
        tls=tls,
        max_body_mib=settings.max_body_mib,
    )


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
