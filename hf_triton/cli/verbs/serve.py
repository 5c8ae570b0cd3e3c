"""``hf-triton serve``: generates, starts Triton, loads every model, and serves until it is stopped.

Exit codes: 0 after a graceful stop (Ctrl-C, SIGTERM or SIGHUP) of a server that had models ready;
130 if it was stopped before, or forced by a second signal; 1 if nothing could be served, or if the
server or a model failed too often to start.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import os
import re
from pathlib import Path

from generator.errors import ModelError, UsageError
from generator.flag_values import port, whole, zero_or_more
from generator.models_yaml.reading import load_settings
from generator.models_yaml.server_settings import ServerSettings, Tls
from generator.repository.compare import readable_errors
from hf_triton.cli.places import CONFIG, REPOSITORY
from hf_triton.cli.verbs.add import add, add_name_and_task, name_of
from hf_triton.cli.verbs.generate import generate, refuse_conflicts
from hf_triton.ports.api_keys import take_api_keys
from hf_triton.ports.settings import Access, Caller, OpenAiPort
from hf_triton.runtime.disk_cache import cache_folder
from hf_triton.runtime.weights.hub_files import is_stored
from hf_triton.serving.python_env import ensure_environments
from hf_triton.tritonserver.admin_key import take_admin_key
from hf_triton.tritonserver.listen import Listen, socket_folder
from hf_triton.tritonserver.log import say
from hf_triton.tritonserver.restart_policy import MAX_RESTARTS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "hf-triton serve [MODEL] [options] [-- ARGUMENT ...]"
    parser.epilog = _EXAMPLE
    _add_model(parser)
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="address to listen on; 0.0.0.0: all interfaces (default: 127.0.0.1)",
    )
    for flag, usual in (("--http-port", 8000), ("--grpc-port", 8001), ("--metrics-port", 8002)):
        told = f"default: {usual}"
        parser.add_argument(flag, type=port, default=usual, metavar="PORT", help=told)
    _add_callers(parser)
    _add_openai(parser)
    _add_admin(parser)
    _add_supervision(parser)
    parser.add_argument("--verbose", action="store_true", help="show tritonserver's whole log")
    parser.passes_on = True  # type: ignore[attr-defined]  # the command line's own parser


_EXAMPLE = """\
  hf-triton serve                           # the models of models.yaml
  hf-triton serve org/model                 # one model of the Hub, without a models.yaml
  hf-triton serve ./folder --openai-port 9000
  hf-triton serve ./chat-Q4_K_M.gguf --save # keep it in models.yaml, for generate and all others
  hf-triton serve -- --log-verbose=1        # arguments for tritonserver itself, which starts in /
"""


def _add_model(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "one model",
        "MODEL is served alone, without a models.yaml. Its repository and downloaded weights stay "
        "in ~/.cache/hf-triton/serve ($XDG_CACHE_HOME), or in --repository FOLDER.",
    )
    about = "a Hub id, a folder or a .gguf file (default: the models of models.yaml)"
    group.add_argument("model", nargs="?", metavar="MODEL", help=about)
    add_name_and_task(group)
    about = "add MODEL to models.yaml, as hf-triton add does, and serve all of that file"
    group.add_argument("--save", action="store_true", help=about)


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
        "for each, 'NAME KEY', and if you like requests_per_minute=N, concurrent_requests=N and "
        "tokens_per_minute=N after it (default: HF_TRITON_API_KEYS with such lines, if set; else "
        "everybody)",
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
        type=whole(0, 1000),
        default=MAX_RESTARTS,
        metavar="N",
        help="stop loading a model after more failures in a row, and serve the others; crashes of "
        "ready models don't count. Where tritonserver dies more often in a row before all models "
        "have loaded once, serve ends with exit code 1 (default: 5)",
    )
    group.add_argument(
        "--health-port",
        type=whole(0, 65535, "port"),
        default=8003,
        metavar="PORT",
        help="port of /live, /ready and /metrics; 0: off (default: 8003)",
    )
    group.add_argument(
        "--drain-s",
        type=zero_or_more,
        default=0.0,
        metavar="SECONDS",
        help="after a stop signal, report not ready for this long before stopping, so that load "
        "balancers stop sending (default: 0)",
    )


def _add_openai(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "OpenAI's API",
        "/v1/models, /v1/completions, /v1/chat/completions and /v1/embeddings, for the openai "
        "package and other clients of that API.",
    )
    group.add_argument(
        "--openai-port",
        type=port,
        metavar="PORT",
        help="port of this API, such as 9000 (default: not served)",
    )
    group.add_argument(
        "--openai-media-hosts",
        type=_hosts,
        default=(),
        metavar="HOST,...",
        help="fetch the images and sounds of chats from these hosts, such as images.example.com or "
        "10.0.0.7:8080 (default: none, chats hold them as data: URLs)",
    )
    group.add_argument(
        "--no-playground",
        dest="playground",
        action="store_false",
        help="do not serve /playground, a page for trying models",
    )
    group.add_argument(
        "--openai-keep-minutes",
        type=zero_or_more,
        default=30.0,
        metavar="MINUTES",
        help="keep responses of /v1/responses in memory for this long after their last use, for "
        "previous_response_id; 0: not at all (default: 30)",
    )


def _add_admin(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "changing the running server",
        "Triton's APIs for loading models, shared memory, tracing and logging need the admin key, "
        "from HF_TRITON_ADMIN_KEY or --admin-key-file; without one they are closed to clients. "
        "`hf-triton apply` needs none.",
    ).add_mutually_exclusive_group()
    group.add_argument(
        "--admin-key-file", type=Path, metavar="FILE", help="a file that holds the admin key"
    )
    group.add_argument(
        "--open-admin-apis",
        action="store_true",
        help="open these APIs to every client, as tritonserver itself does",
    )


def run(args: argparse.Namespace) -> int:
    """Serves until stopped. Raises GeneratorError where serving can't begin or fails."""
    for argument in args.arguments:
        if not argument.startswith("-"):
            raise UsageError(f"unexpected '{argument}'; arguments for tritonserver start with '-'")
    if args.model is None and (args.name or args.task or args.save):
        raise UsageError("--name, --task and --save are for serve MODEL: name a model")
    if args.openai_media_hosts and args.openai_port is None:
        raise UsageError("--openai-media-hosts needs --openai-port")
    # Imported here: --help needs no processes.
    from hf_triton.ports.child_process import proxy
    from hf_triton.serving.supervision.lifecycle import serve
    from hf_triton.serving.supervision.loop import PublicPorts, ServeOptions
    from hf_triton.tritonserver.process import TritonServer, refuse_clashes

    config, repository = Path(args.given_config or CONFIG), Path(args.repository)
    callers = take_api_keys(args.api_keys_file, os.environ)
    refuse_clashes(args.arguments)
    admin_key = take_admin_key(args.admin_key_file, os.environ)
    if args.open_admin_apis:
        admin_key = ""
    numbers = (args.http_port, args.grpc_port, args.metrics_port, args.openai_port or 0)
    listen = Listen(args.host, *numbers, health_port=args.health_port)
    listen.check()  # before files are written
    if args.model is not None and args.save:
        say(f"added {add(config, args.model, args.name, args.task)}")
    elif args.model is not None:
        config = _of_one_model(args)
        repository = Path(args.given_repository or config.with_name(REPOSITORY))
    elif not config.exists():
        hint = "hf-triton add MODEL makes one, hf-triton serve MODEL needs none"
        raise ModelError(f"{config}: no such file; {hint}")
    outcome = generate(config, repository)
    settings = load_settings(config)
    if outcome.written:
        names = ", ".join(model.name for model in outcome.written)
        say(f"generated in {repository}: {names}")
    for note in outcome.notes:
        say(note)
    refuse_conflicts(outcome.conflicts)
    # A model whose environment can't be built does not load; the others are served.
    for name, reason in ensure_environments(outcome.plan.specs).items():
        say(f"{name}: {reason}")
    options = ServeOptions(config, args.max_restarts, args.drain_s, settings.on_demand)
    access = _access(settings, callers, config)
    kept = config.absolute().parent / settings.batches.folder
    batches = dataclasses.replace(settings.batches, folder=str(kept))
    with socket_folder() as sockets:
        listen = dataclasses.replace(listen, sockets=sockets)
        server = TritonServer(
            repository,
            listen,
            arguments=[*settings.flags(), *args.arguments],
            verbose=args.verbose,
        )
        openai = None
        if args.openai_port:
            openai = OpenAiPort(
                listen.metrics_socket,
                tuple(args.openai_media_hosts),
                args.playground,
                args.openai_keep_minutes * 60,
                batches,
            )
        ports = PublicPorts(
            proxy(listen, access, admin_key, openai, repository.absolute()), openai, access
        )
        return serve(server, [spec.name for spec in outcome.plan.specs], options, ports)


def _of_one_model(args: argparse.Namespace) -> Path:
    """The models.yaml of MODEL alone, in the user's cache. Raises GeneratorError."""
    if args.given_config:
        raise UsageError(
            "--config: MODEL needs none; leave it out, or add --save to keep MODEL there"
        )
    if is_stored(args.model):
        raise UsageError(f"{args.model}: hf-triton add it, then run hf-triton fetch and serve")
    place = Path(os.path.expanduser(args.model))  # noqa: PTH111, it never raises
    is_here = place.exists()
    asked = [str(place.resolve()) if is_here else args.model, args.name, args.task]
    key = hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:8]
    folder = f"{name_of(place.resolve() if is_here else place)}-{key}"
    try:
        config = cache_folder("serve", folder, CONFIG).absolute()
    except RuntimeError as error:
        raise UsageError(f"{error}: set XDG_CACHE_HOME to a folder") from None
    if not is_here and config.exists():
        say(f"{config}: as before")  # the Hub need not be asked
        return config
    with readable_errors():
        config.unlink(missing_ok=True)
    say(add(config, *asked))
    return config


def _access(settings: ServerSettings, callers: tuple[Caller, ...], config: Path) -> Access:
    """The access rules of the public ports. Raises ServerError for unusable TLS files."""
    from hf_triton.ports.port import tls_context

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


def _hosts(text: str) -> tuple[str, ...]:
    hosts = tuple(host.strip() for host in text.split(","))
    for host in hosts:
        if not re.fullmatch(r"[\w.-]+(:\d{1,5})?|\[[0-9A-Fa-f:]+\](:\d{1,5})?", host):
            raise argparse.ArgumentTypeError(
                f"got '{host}', expected HOST or HOST:PORT, such as images.example.com"
            )
    return hosts
