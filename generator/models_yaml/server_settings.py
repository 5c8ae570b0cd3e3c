"""The ``server:`` block of models.yaml: what is said of the whole server, not of one model.

Tracing is Triton's own: https://github.com/triton-inference-server/server/blob/main/docs/
user_guide/trace.md#opentelemetry-trace-support
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar
from urllib.parse import urlsplit

from generator.yaml_file.keys import (
    GOT,
    INT32_MAX,
    SAID,
    After,
    Before,
    Keys,
    Mistake,
    Text,
    key,
    listed,
    number,
    refused,
    whole,
)

ORIGIN = r"\*|https?://[A-Za-z0-9._\[\]:-]+"
ORIGIN_EXAMPLE = "https://chat.example.com"
_URL_EXAMPLE = "http://localhost:4318/v1/traces"
_GRPC_PORT = 4317


def _without_secret(url: object) -> object:
    if isinstance(url, str) and "@" in url:
        # The text before it may be a secret: not shown.
        hint = "set OTEL_EXPORTER_OTLP_HEADERS in the environment"
        message = f"got a URL with '@', but secrets don't belong in this file; {hint}"
        raise refused(message, SAID)
    return url


def _collector(url: str) -> str:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise refused(f"a host and a port, as in {_URL_EXAMPLE}") from None
    if port == _GRPC_PORT:
        raise refused(f"but Triton sends OTLP over HTTP, not gRPC: {_URL_EXAMPLE}", GOT)
    if not parts.hostname or not parts.path.strip("/"):
        raise refused(f"its path too, as in {_URL_EXAMPLE}")
    return url


_URL = Text(
    f"the URL of an OTLP collector, such as {_URL_EXAMPLE}",
    r"https?://[A-Za-z0-9._\[\]:-]+(/[A-Za-z0-9._~/%+-]*)?",
)
_SERVICE_NAME = Text("letters, digits and . _ -", r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_ORIGIN = Text(f"an origin such as {ORIGIN_EXAMPLE}, or '*'", ORIGIN)


@dataclass(frozen=True)
class Tracing(Keys):
    """Sends traces to an OpenTelemetry collector over HTTP: one of ``rate``
    requests, with 0 only those that come with a trace context of their own.
    """

    expected: ClassVar[str] = f"a map such as {{url: {_URL_EXAMPLE}}}"
    needs: ClassVar[Mapping[str, str]] = {"url": f"the collector's address, such as {_URL_EXAMPLE}"}
    url: Annotated[str, _URL, After(_collector), Before(_without_secret)]
    rate: Annotated[int, whole(0, INT32_MAX, "1 traces every request, 100 each hundredth")] = 1
    service_name: Annotated[str, _SERVICE_NAME] = "hf-triton"


@dataclass(frozen=True)
class OnDemand(Keys):
    """Limits the memory that models with ``load: on_demand`` share: of each device they may take so
    many GiB, or such a share of all it has; where neither is given, what is free. A request waits
    ``load_wait_s`` seconds at most for its model; ``max_loads`` are loaded at once.
    """

    expected: ClassVar[str] = "a map such as {memory_gib: 16, load_wait_s: 120}"
    memory_gib: Annotated[float, number(0.001, 2**20, unit="GiB of each device")] | None = None
    memory_share: (
        Annotated[float, number(most=1, above=0, unit="of each device's memory")] | None
    ) = None
    load_wait_s: Annotated[int, whole(1, 24 * 3600, "seconds")] = 300
    max_loads: Annotated[int, whole(1, 4, "models at once")] = 1

    def mistakes(self) -> Iterator[Mistake]:
        if self.memory_gib is not None and self.memory_share is not None:
            yield Mistake("got both memory_gib and memory_share, expected one of them")


_Requests = Annotated[int, whole(1, 1_000_000, "requests of one caller")]


@dataclass(frozen=True)
class Limits(Keys):
    """Limits each caller, identified by key, else by address. 0 means no limit."""

    expected: ClassVar[str] = "a map such as {requests_per_minute: 600, concurrent_requests: 16}"
    requests_per_minute: _Requests = 0
    concurrent_requests: _Requests = 0
    tokens_per_minute: Annotated[int, whole(1, 1_000_000_000, "tokens of one caller")] = 0


@dataclass(frozen=True)
class Tls(Keys):
    """PEM files: a certificate with its chain, and its private key."""

    expected: ClassVar[str] = "a map such as {certificate: server.pem, key: server.key}"
    needs: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("certificate", "key"), f"expected {expected}"
    )
    certificate: Annotated[str, Text("a file in PEM")]
    key: Annotated[str, Text("a file in PEM")]


@dataclass(frozen=True)
class Batches(Keys):
    """Files and batches of OpenAI's API: they take at most ``max_gib`` GiB in ``folder``, which is
    relative to models.yaml's. Fewer requests of batches run as others' come: all together up to
    ``concurrent_requests``.
    """

    expected: ClassVar[str] = "a map such as {folder: batches, max_gib: 4}"
    folder: Annotated[str, Text("a folder")] = "batches"
    max_gib: Annotated[float, number(0.001, 2**20, unit="GiB")] = 1.0
    concurrent_requests: Annotated[int, whole(1, 4096, "requests at once")] = 16


@dataclass(frozen=True)
class ServerSettings(Keys):
    """``tracing`` is None where there is none. All others are of the ports on which callers ask;
    the files of ``tls`` are relative to models.yaml's folder.
    """

    expected: ClassVar[str] = "a map of settings of the server"
    gone: ClassVar[Mapping[str, str]] = {
        "log_format": "let the collector of your logs parse lines, as Fluent Bit and Vector do"
    }
    tracing: Tracing | None = key(None, "a collector of traces: [tracing](observability.md)")
    max_body_mib: Annotated[int, whole(1, 1024, "MiB")] = key(
        64, "the longest body of a request, in MiB: [callers](callers.md)"
    )
    limits: Limits = key(Limits(), "limits of each caller: [callers](callers.md)", "none")
    cors: Annotated[
        tuple[Annotated[str, _ORIGIN], ...], listed(f"a list of origins such as {ORIGIN_EXAMPLE}")
    ] = key((), "origins whose web pages may send requests: [callers](callers.md)", "none")
    tls: Tls | None = key(None, "a certificate and its key: [callers](callers.md)")
    batches: Batches = key(
        Batches(), "files and batches of OpenAI's API: [batches](openai-api.md#batches)", "1 GiB"
    )
    on_demand: OnDemand = key(
        OnDemand(),
        "memory of models with `load: on_demand`: [on demand](on-demand.md)",
        "the free memory",
    )

    def flags(self) -> list[str]:
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


def bracketed(host: str) -> str:
    """``host`` as it stands before a port: an address of IPv6 in brackets."""
    return f"[{host}]" if ":" in host else host
