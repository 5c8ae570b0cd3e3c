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

from generator.errors import ServerError, UsageError
from generator.models_yaml.reading import load_settings
from generator.models_yaml.server_settings import ServerSettings
from generator.spec.task_folders import find_tasks
from hf_triton.cli.places import CONFIG
from hf_triton.cli.verbs.generate import Outcome, generate, refuse_conflicts
from hf_triton.cli.verbs.serve_arguments import HEALTH_PORT, add_arguments, settle

if TYPE_CHECKING:
    from hf_triton.ports.settings import Access, Caller, OpenAiPort
    from hf_triton.tritonserver.listen import Listen

__all__ = ["add_arguments", "run"]


def run(args: argparse.Namespace) -> int:
    """Serves until stopped. Raises GeneratorError where serving can't begin or fails."""
    for argument in args.arguments:
        if not argument.startswith("-"):
            raise UsageError(f"unexpected '{argument}'; arguments for tritonserver start with '-'")
    settle(args)
    # Imported here: other verbs and --help need no HTTP and no processes.
    from hf_triton.ports.api_keys import take_api_keys
    from hf_triton.ports.child_process import proxy
    from hf_triton.ports.openai.curl_lines import api_of, take_key
    from hf_triton.serving.apply.file_watch import WatchedFiles
    from hf_triton.serving.supervision.children import Children
    from hf_triton.serving.supervision.lifecycle import ServeOptions, serve
    from hf_triton.tritonserver import json_log
    from hf_triton.tritonserver.listen import socket_folder
    from hf_triton.tritonserver.process import TritonServer
    from hf_triton.tritonserver.restart_policy import RestartPolicy

    if args.log_format == "json":
        json_log.start()
    config, repository = Path(args.given_config or CONFIG), Path(args.repository)
    openai_caller = take_key(args.openai_key_file, os.environ)
    callers = take_api_keys(args.api_keys_file, os.environ)
    if args.triton_url:
        return _serve_openai_only(args, config, openai_caller, callers)
    admin_key = _admin_key(args)
    listen = _listen(args)  # checked before files are written
    watched = WatchedFiles(config) if args.watch else None
    outcome = generate(config, repository)
    settings = _settings(config, args)
    _report(outcome, args.repository)
    refuse_conflicts(outcome)
    _build_environments(outcome)
    policy = RestartPolicy(max_restarts=args.max_restarts)
    models = [spec.name for spec in outcome.plan.specs]
    options = ServeOptions(
        *(config, args.load_timeout_s, policy, args.drain_s, watched),
        on_demand=settings.on_demand,
    )
    access = _access(settings, callers, config)
    with socket_folder() as sockets:
        listen = dataclasses.replace(listen, sockets=sockets)
        server = TritonServer(
            repository,
            listen,
            arguments=[*settings.flags(), *args.arguments],
            verbose=args.verbose,
            admin_key=admin_key,
        )
        openai = (
            _openai(args, listen.triton_grpc, openai_caller, repository, listen.metrics_socket)
            if args.openai_port
            else None
        )
        children = Children(
            (proxy(listen, access, policy, admin_key, openai),),
            api_of(openai, listen, access) if openai else None,
            access,
        )
        return serve(server, models, options, children)


def _openai(
    args: argparse.Namespace,
    triton_address: str,
    caller: Caller | None,
    repository: Path | None = None,
    metrics_socket: str = "",
) -> OpenAiPort:
    from hf_triton.ports.settings import OpenAiPort

    return OpenAiPort(
        args.openai_port,
        triton_address,
        repository,
        metrics_socket,
        tuple(args.openai_media_hosts),
        args.playground,
        args.openai_keep_minutes * 60,
        args.verbose,
        caller,
        args.openai_cors,
    )


def _serve_openai_only(
    args: argparse.Namespace,
    config: Path,
    openai_caller: Caller | None,
    callers: tuple[Caller, ...],
) -> int:
    """Serves OpenAI's API for --triton-url. models.yaml is optional; only its ``server`` settings
    are read.
    """
    from hf_triton.serving.supervision.lifecycle import stop_signals
    from hf_triton.serving.supervision.openai_only import serve_openai_only
    from hf_triton.tritonserver.listen import Listen

    has_file = args.given_config is not None or config.is_file()
    settings = _settings(config, args) if has_file else ServerSettings()
    return serve_openai_only(
        Listen(args.host, openai_port=args.openai_port),
        _openai(args, args.triton_url, openai_caller),
        _access(settings, callers, config),
        stop_signals(),
    )


def _settings(config: Path, args: argparse.Namespace) -> ServerSettings:
    """The server settings of models.yaml; their log format applies from here on."""
    from hf_triton.tritonserver import json_log

    settings = load_settings(config)
    if settings.log_format == "json" and args.log_format is None:
        json_log.start()
    return settings


def _listen(args: argparse.Namespace) -> Listen:
    """The addresses to listen on. A busy default health port is replaced by a free one. Raises
    ServerError where another port is busy.
    """
    from hf_triton.tritonserver.listen import Listen

    ports = (args.http_port, args.grpc_port, args.metrics_port, args.openai_port or 0)
    listen = Listen(args.host, *ports, health_port=args.health_port or 0)
    listen.check()
    if args.health_port is not None:
        return listen
    listen = dataclasses.replace(listen, health_port=HEALTH_PORT)
    try:
        listen.check()
    except ServerError as error:
        listen = dataclasses.replace(listen, health_port=listen.free_port())
        print(f"hf-triton: {error}; took {listen.health_port}", file=sys.stderr)
    return listen


def _access(settings: ServerSettings, callers: tuple[Caller, ...], config: Path) -> Access:
    """The access rules of the public ports. Raises ServerError for unusable TLS files."""
    from generator.spec.access import Tls
    from hf_triton.ports.port import tls_context
    from hf_triton.ports.settings import Access

    files, base = settings.tls, config.resolve().parent
    tls = Tls(str(base / files.certificate), str(base / files.key)) if files else None
    tls_context(tls)
    return Access(
        callers=callers,
        limits=settings.limits,
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
    """Builds the models' Python environments. A model whose build fails does not load; the others
    are served.
    """
    from hf_triton.serving.python_env.ensuring import ensure_environments

    for name, reason in ensure_environments(outcome.plan.specs, find_tasks()).items():
        print(f"hf-triton: {name}: {reason}", file=sys.stderr)


def _admin_key(args: argparse.Namespace) -> str:
    """The admin key; empty where access is open. Raises ServerError or UsageError."""
    from hf_triton.tritonserver.admin_key import new_admin_key, take_admin_key
    from hf_triton.tritonserver.restrictions import refuse_clashes

    refuse_clashes(args.arguments, has_key=not args.open_admin_apis)
    given = take_admin_key(args.admin_key_file, os.environ)
    return "" if args.open_admin_apis else given or new_admin_key()
