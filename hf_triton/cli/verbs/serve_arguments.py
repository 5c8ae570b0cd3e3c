"""The arguments of ``hf-triton serve``."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from generator.errors import UsageError
from generator.flag_values import address, port, positive, whole, zero_or_more
from generator.models_yaml.server_settings import LOG_FORMATS, ORIGIN, ORIGIN_EXAMPLE

HEALTH_PORT = 8003  # used if it is free
# Of a tritonserver that is started here, and so refused with --triton-url: the default of each.
_OF_OWN_SERVER: dict[str, object] = {
    "http_port": 8000,
    "grpc_port": 8001,
    "metrics_port": 8002,
    "health_port": None,
    "load_timeout_s": None,
    "max_restarts": 5,
    "drain_s": 0.0,
    "watch": False,
    "verbose": False,
    "admin_key_file": None,
    "open_admin_apis": False,
    "given_repository": None,
    "arguments": [],
}
_FLAGS = {"given_repository": "--repository", "arguments": "arguments for tritonserver"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="address to listen on; 0.0.0.0: all interfaces (default: 127.0.0.1)",
    )
    for flag, usual in (("--http-port", 8000), ("--grpc-port", 8001), ("--metrics-port", 8002)):
        parser.add_argument(flag, type=port, metavar="PORT", help=f"default: {usual}")
    _add_callers(parser)
    _add_openai(parser)
    _add_admin(parser)
    parser.add_argument(
        "--load-timeout-s",
        type=positive,
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
    parser.add_argument(
        "--verbose",
        action="store_true",
        help="show tritonserver's whole log, and the names of fields that OpenAI's API leaves out",
    )
    parser.add_argument(
        "arguments",
        nargs="*",
        metavar="-- ARGUMENT",
        help="arguments for tritonserver itself, which starts in /: -- --log-verbose=1",
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
        type=whole(0, 1000),
        metavar="N",
        help="stop loading a model after more failures in a row, and serve the others; crashes of "
        "ready models don't count. Where tritonserver dies more often in a row before all models "
        "have loaded once, serve ends with exit code 1 (default: 5)",
    )
    group.add_argument(
        "--health-port",
        type=whole(0, 65535, "port"),
        metavar="PORT",
        help=f"port of /live, /ready and /metrics; 0: off (default: {HEALTH_PORT}, or a free one "
        "if that is busy)",
    )
    group.add_argument(
        "--drain-s",
        type=zero_or_more,
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
        type=port,
        metavar="PORT",
        help="port of this API, such as 9000 (default: not served)",
    )
    group.add_argument(
        "--openai-key-file",
        type=Path,
        metavar="FILE",
        help="a file with the key that clients must send (default: HF_TRITON_OPENAI_KEY, if set)",
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
    group.add_argument(
        "--openai-cors",
        type=_origins,
        default=(),
        metavar="ORIGIN,...",
        help=f"allow requests from pages of these origins, such as {ORIGIN_EXAMPLE}; '*': all. "
        "They add to cors in models.yaml (default: none)",
    )
    group.add_argument(
        "--triton-url",
        type=address("Triton's gRPC, such as 127.0.0.1:8001"),
        metavar="HOST:PORT",
        help="serve only this API, for the Triton at this gRPC address; generate and start "
        "nothing else. API keys apply, and max_body_mib, limits, cors and tls of models.yaml, if "
        "there is one",
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


def settle(args: argparse.Namespace) -> None:
    """Fills in defaults. Raises UsageError for options that would be ignored."""
    for flag, value in (
        ("--triton-url", args.triton_url),
        ("--openai-key-file", args.openai_key_file),
        ("--openai-media-hosts", args.openai_media_hosts or None),
        ("--openai-cors", args.openai_cors or None),
    ):
        if value is not None and args.openai_port is None:
            raise UsageError(f"{flag} needs --openai-port")
    given = [name for name in _OF_OWN_SERVER if _is_given(getattr(args, name))]
    if args.triton_url and given:
        flags = ", ".join(_FLAGS.get(name, f"--{name.replace('_', '-')}") for name in given)
        raise UsageError(f"with --triton-url no tritonserver is started: leave out {flags}")
    for name in _OF_OWN_SERVER.keys() - given:
        setattr(args, name, _OF_OWN_SERVER[name])


def _is_given(value: object) -> bool:
    """Whether an option was given: it differs from argparse's default; 0 counts as given."""
    return value is not None and value is not False and value != []


def _origins(text: str) -> tuple[str, ...]:
    origins = tuple(origin.strip() for origin in text.split(","))
    for origin in origins:
        if not re.fullmatch(ORIGIN, origin):
            raise argparse.ArgumentTypeError(
                f"got '{origin}', expected an origin such as {ORIGIN_EXAMPLE}, or '*'"
            )
    return origins


def _hosts(text: str) -> tuple[str, ...]:
    hosts = tuple(host.strip() for host in text.split(","))
    for host in hosts:
        if not re.fullmatch(r"[\w.-]+(:\d{1,5})?|\[[0-9A-Fa-f:]+\](:\d{1,5})?", host):
            raise argparse.ArgumentTypeError(
                f"got '{host}', expected HOST or HOST:PORT, such as images.example.com"
            )
    return hosts
