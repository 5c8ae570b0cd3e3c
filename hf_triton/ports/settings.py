"""The settings of the ports' process: its addresses and Triton's, and callers' access."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from generator.models_yaml.server_settings import Batches, Limits, Tls
from hf_triton.tritonserver.listen import Listen

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


class OpenAiPort(msgspec.Struct, frozen=True):
    """OpenAI's API, in front of a Triton whose metrics are at a Unix socket. ``media_hosts`` are
    those from which images and sounds are fetched; responses are kept for ``keep_s``.
    """

    metrics_socket: str = ""
    media_hosts: tuple[str, ...] = ()
    has_playground: bool = True
    keep_s: float = 1800.0
    batches: Batches = Batches()


class ProxySettings(msgspec.Struct, frozen=True):
    """The ports of one process: Triton's in front of the sockets of ``listen``, where it has some,
    and OpenAI's. Without ``admin_key`` Triton's admin APIs are open. The files by which models
    learn who has left have paths that begin with ``abandoned_requests``; ``repository`` is that of
    Triton.
    """

    listen: Listen
    openai: OpenAiPort | None = None
    abandoned_requests: str = ""
    access: Access = EVERYBODY
    admin_key: str = ""
    repository: Path = Path()
