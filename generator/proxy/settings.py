"""What a proxy is told: where it listens and where Triton does, who may ask, how much.

Travels to the proxy in its environment, which only the server's user can read: keys are in it.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets

import msgspec

VARIABLE = "HF_TRITON_PROXY_SETTINGS"
MIB = 1 << 20


class Limits(msgspec.Struct, frozen=True):
    """What one caller may do, 0 where it may do as much as there is room for."""

    requests_per_minute: int = 0
    concurrent_requests: int = 0


class Caller(msgspec.Struct, frozen=True):
    """One who has a key; without ``limits`` those of all hold."""

    name: str
    key: str
    limits: Limits | None = None

    def __repr__(self) -> str:
        return f"Caller({self.name!r})"


class Tls(msgspec.Struct, frozen=True):
    """The files, in PEM: a certificate with its chain, and its private key."""

    certificate: str
    key: str


class Access(msgspec.Struct, frozen=True):
    """Who may ask, from where, and how much; without ``callers`` everybody may.

    ``secret`` makes what a model is told of a caller a name that nobody can guess.
    """

    callers: tuple[Caller, ...] = ()
    limits: Limits = Limits()
    cors: tuple[str, ...] = ()
    tls: Tls | None = None
    max_body_mib: int = 64
    secret: str = msgspec.field(default_factory=lambda: secrets.token_hex(16))

    def alias_of(self, caller: str) -> str:
        """The opaque name under which a model keeps apart what callers may not share."""
        return hmac.new(self.secret.encode(), caller.encode(), hashlib.sha256).hexdigest()[:32]


class ProxySettings(msgspec.Struct, frozen=True):
    """``host`` and the ports are the public ones, the sockets tritonserver's."""

    host: str
    http_port: int
    metrics_port: int
    grpc_port: int
    http_socket: str
    metrics_socket: str
    grpc_socket: str
    access: Access = Access()

    def to_text(self) -> str:
        """For VARIABLE."""
        return msgspec.json.encode(self).decode()

    @staticmethod
    def from_text(text: str) -> ProxySettings:
        """What ``to_text`` made."""
        return msgspec.json.decode(text, type=ProxySettings)
