"""The limits and certificates of callers in models.yaml."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

from generator.yaml_file.keys import Keys, Text, whole

_Requests = Annotated[int, whole(1, 1_000_000, "requests of one caller")]


@dataclass(frozen=True)
class Limits(Keys):
    """Limits each caller, identified by key, else by address. 0 means no limit."""

    expected: ClassVar[str] = "a map such as {requests_per_minute: 600, concurrent_requests: 16}"
    requests_per_minute: _Requests = 0
    concurrent_requests: _Requests = 0
    tokens_per_minute: Annotated[int, whole(1, 1_000_000_000, "tokens of one caller")] = 0


NO_LIMITS = Limits()


@dataclass(frozen=True)
class Tls(Keys):
    """PEM files: a certificate with its chain, and its private key."""

    expected: ClassVar[str] = "a map such as {certificate: server.pem, key: server.key}"
    needs: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("certificate", "key"), f"expected {expected}"
    )
    certificate: Annotated[str, Text("a file in PEM")]
    key: Annotated[str, Text("a file in PEM")]


def bracketed(host: str) -> str:
    """``host`` as it stands before a port: an address of IPv6 in brackets."""
    return f"[{host}]" if ":" in host else host
