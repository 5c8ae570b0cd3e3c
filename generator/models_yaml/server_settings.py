"""The ``server:`` block of models.yaml: what is said of the whole server, not of one model.

Tracing is Triton's own: https://github.com/triton-inference-server/server/blob/main/docs/
user_guide/trace.md#opentelemetry-trace-support
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

from generator.spec.access import NO_LIMITS, Limits, Tls
from generator.yaml_file import schema
from generator.yaml_file.nodes import Node
from generator.yaml_file.schema import Check, Report

LOG_FORMATS = ("text", "json")
_URL = re.compile(r"https?://[A-Za-z0-9._\[\]:-]+(/[A-Za-z0-9._~/%+-]*)?")
_URL_EXAMPLE = "http://localhost:4318/v1/traces"
_GRPC_PORT = 4317


@dataclass(frozen=True)
class Tracing:
    """Where an OpenTelemetry collector takes traces, over HTTP, and how many: one of ``rate``
    requests, with 0 only those that come with a trace context of their own.
    """

    url: str
    rate: int = 1
    service_name: str = "hf-triton"


@dataclass(frozen=True)
class OnDemand:
    """How models with ``load: on_demand`` share memory: of each device they may take together so
    many GiB, or such a share of all it has; where neither is given, what is free. A request waits
    ``load_wait_s`` seconds at most for its model; ``max_loads`` are loaded at once.
    """

    memory_gib: float | None = None
    memory_share: float | None = None
    load_wait_s: int = 300
    max_loads: int = 1


@dataclass(frozen=True)
class ServerSettings:
    """``tracing`` is None where there is none; ``log_format`` is one of LOG_FORMATS. The others are
    of the ports on which callers ask: ``cors`` has the origins whose pages may; the files of
    ``tls`` are relative to models.yaml's folder.
    """

    tracing: Tracing | None = None
    log_format: str = "text"
    max_body_mib: int = 64
    limits: Limits = NO_LIMITS
    cors: tuple[str, ...] = ()
    tls: Tls | None = None
    on_demand: OnDemand = OnDemand()

    def flags(self) -> list[str]:
        """What tritonserver is told of it."""
        if self.tracing is None:
            return []
        settings = (
            "mode=opentelemetry",
            "level=TIMESTAMPS",  # the other level would hold tensors, prompts among them
            f"rate={self.tracing.rate}",
            f"opentelemetry,url={self.tracing.url}",
            f"opentelemetry,resource=service.name={self.tracing.service_name}",
        )
        return [f"--trace-config={setting}" for setting in settings]


def read_settings(node: Node | None, report: Report) -> ServerSettings:
    """The block's settings, the defaults where there is none; its mistakes are reported."""
    if node is None:
        return ServerSettings()
    values = schema.mapping(_KEYS, "a map of settings of the server")(node, report)
    return ServerSettings(**values)


def _tracing(node: Node, report: Report) -> Tracing | None:
    values = schema.mapping(_TRACING_KEYS, f"a map such as {{url: {_URL_EXAMPLE}}}")(node, report)
    if isinstance(node.value, dict) and node.get("url") is None:
        report.add(node, f"missing key 'url': where the collector is, such as {_URL_EXAMPLE}")
    return Tracing(**values) if "url" in values else None


def _collector(node: Node, report: Report) -> str | None:
    value = node.value
    if isinstance(value, str) and "@" in value:
        # What stands before it may be a secret: not shown.
        hint = "set OTEL_EXPORTER_OTLP_HEADERS in the environment"
        report.add(node, f"got a URL with '@', but secrets don't belong in this file; {hint}")
        return None
    url = schema.text(f"the URL of an OTLP collector, such as {_URL_EXAMPLE}", _URL.pattern)
    found: str | None = url(node, report)
    reason = _why_no_collector(found) if found else ""
    if reason:
        report.add(node, f"got {schema.show(node)}, {reason}")
    return None if reason else found


def _why_no_collector(url: str) -> str:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return f"expected a host and a port, as in {_URL_EXAMPLE}"
    if port == _GRPC_PORT:
        return f"but Triton sends OTLP over HTTP, not gRPC: {_URL_EXAMPLE}"
    if not parts.hostname or not parts.path.strip("/"):
        return f"expected its path too, as in {_URL_EXAMPLE}"
    return ""


def _limits(node: Node, report: Report) -> Limits:
    expected = "a map such as {requests_per_minute: 600, concurrent_requests: 16}"
    return Limits(**schema.mapping(_LIMIT_KEYS, expected)(node, report))


def _cors(node: Node, report: Report) -> tuple[str, ...] | None:
    expected = f"a list of origins such as {ORIGIN_EXAMPLE}"
    origin = schema.text(f"an origin such as {ORIGIN_EXAMPLE}, or '*'", ORIGIN)
    found = schema.list_of(origin, expected, unique=True)(node, report)
    return None if found is None else tuple(found)


def _tls(node: Node, report: Report) -> Tls | None:
    expected = "a map such as {certificate: server.pem, key: server.key}"
    values = schema.mapping(_TLS_KEYS, expected)(node, report)
    if isinstance(node.value, dict):
        for name in _TLS_KEYS:
            if node.get(name) is None:
                report.add(node, f"missing key '{name}': expected {expected}")
    return Tls(**values) if len(values) == len(_TLS_KEYS) else None


def _on_demand(node: Node, report: Report) -> OnDemand:
    expected = "a map such as {memory_gib: 16, load_wait_s: 120}"
    values = schema.mapping(_ON_DEMAND_KEYS, expected)(node, report)
    if "memory_gib" in values and "memory_share" in values:
        report.add(node, "got both memory_gib and memory_share, expected one of them")
    return OnDemand(**values)


ORIGIN = r"\*|https?://[A-Za-z0-9._\[\]:-]+"
ORIGIN_EXAMPLE = "https://chat.example.com"
_MOST_REQUESTS = 1_000_000
_LIMIT_KEYS: dict[str, Check] = {
    "requests_per_minute": schema.integer(1, _MOST_REQUESTS, "requests of one caller"),
    "concurrent_requests": schema.integer(1, _MOST_REQUESTS, "requests of one caller"),
}
_TLS_KEYS: dict[str, Check] = {
    "certificate": schema.text("a file in PEM"),
    "key": schema.text("a file in PEM"),
}
_TRACING_KEYS: dict[str, Check] = {
    "url": _collector,
    "rate": schema.integer(0, schema.INT32_MAX, "one request of so many"),
    "service_name": schema.text("letters, digits and . _ -", r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}"),
}
_ON_DEMAND_KEYS: dict[str, Check] = {
    "memory_gib": schema.number(0.001, 2**20, unit="GiB of each device"),
    "memory_share": schema.number(maximum=1, exclusive_min=0, unit="of each device's memory"),
    "load_wait_s": schema.integer(1, 24 * 3600, "seconds"),
    "max_loads": schema.integer(1, 4, "models at once"),
}
_KEYS: dict[str, Callable[[Node, Report], object]] = {
    "tracing": _tracing,
    "log_format": schema.choice(*LOG_FORMATS),
    "max_body_mib": schema.integer(1, 1024, "MiB"),
    "limits": _limits,
    "cors": _cors,
    "tls": _tls,
    "on_demand": _on_demand,
}
