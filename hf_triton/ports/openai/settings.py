"""What the translator is told."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from hf_triton.ports.settings import EVERYBODY, Access


@dataclass(frozen=True)
class Settings:
    """Where to listen, and the gRPC ``host:port`` of Triton; its repository and the Unix socket of
    its metrics, where they are here; ``media_hosts`` are those from which images and sounds are
    fetched; the files by which models learn who has left have paths that begin with
    ``abandoned_requests``, empty where Triton is elsewhere; responses are kept for ``keep_s``;
    ``verbose`` shows the debug log; what changes models needs the ``admin_key``, where there is
    one.
    """

    host: str
    port: int
    triton_address: str
    access: Access = EVERYBODY
    repository: Path | None = None
    media_hosts: tuple[str, ...] = ()
    metrics_socket: str = ""
    has_playground: bool = True
    abandoned_requests: str = ""
    keep_s: float = 1800.0
    verbose: bool = False
    admin_key: str = field(default="", repr=False)
