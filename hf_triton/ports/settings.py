"""What a proxy is told: where it listens and where Triton does, who may ask, how much."""

from __future__ import annotations

import hashlib

import msgspec

from generator.spec.access import Limits, Tls

MIB = 1 << 20


class Caller(msgspec.Struct, frozen=True):
    """One who has a key; without ``limits`` those of all hold."""

    name: str
    key: str
    limits: Limits | None = None

    @property
    def alias(self) -> str:
        """The name by which a model keeps this caller apart from others; it tells no key."""
        return hashlib.sha256(b"caller " + self.key.encode()).hexdigest()[:32]

    def __repr__(self) -> str:
        return f"Caller({self.name!r})"


class Access(msgspec.Struct, frozen=True):
    """API keys, limits, CORS and TLS of the ports. With no callers, no key is needed."""

    callers: tuple[Caller, ...] = ()
    limits: Limits = Limits()
    cors: tuple[str, ...] = ()
    tls: Tls | None = None
    max_body_mib: int = 64

    @property
    def key_variable(self) -> str:
        """The shell variable that stands for a caller's key in the requests that ``serve`` shows;
        empty where none is needed.
        """
        return "HF_TRITON_API_KEY" if self.callers else ""


EVERYBODY = Access()


class ProxySettings(msgspec.Struct, frozen=True):
    """``host`` and the ports are the public ones, the sockets tritonserver's; without
    ``admin_key`` all its APIs are open. The files by which models learn who has left have paths
    that begin with ``abandoned_requests``.
    """

    host: str
    http_port: int
    metrics_port: int
    grpc_port: int
    http_socket: str
    metrics_socket: str
    grpc_socket: str
    abandoned_requests: str
    access: Access = EVERYBODY
    admin_key: str = ""
