"""What models.yaml says of who may ask, and how much."""

from __future__ import annotations

import msgspec


class Limits(msgspec.Struct, frozen=True):
    """What one caller may do: who has a key, else an address. 0: as much as there is room for."""

    requests_per_minute: int = 0
    concurrent_requests: int = 0


NO_LIMITS = Limits()


class Tls(msgspec.Struct, frozen=True):
    """PEM files: a certificate with its chain, and its private key."""

    certificate: str
    key: str


def bracketed(host: str) -> str:
    """``host`` as it stands before a port: an address of IPv6 in brackets."""
    return f"[{host}]" if ":" in host else host
