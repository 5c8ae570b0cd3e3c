"""The state file of a running ``serve``, in the repository: its addresses and its admin key.

``.hf-triton-server-<http port>.json``, readable only by whoever started the server. Written once
the server answers, removed at its end; one whose process is gone counts for nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from dataclasses import dataclass, field
from pathlib import Path

from generator.errors import RepositoryError
from hf_triton.runtime.regular_file import read_json

STATE_PREFIX = ".hf-triton-server-"


@dataclass(frozen=True)
class ServerState:
    """``pid`` is that of ``hf-triton serve``; ``host`` one that a client on this machine can use;
    ``config`` the absolute path of the models.yaml that it was started with; ``sockets`` the folder
    of tritonserver's Unix sockets.
    """

    pid: int
    host: str
    http_port: int
    grpc_port: int
    metrics_port: int
    health_port: int
    config: str
    admin_key: str = field(default="", repr=False)
    sockets: str = ""

    @property
    def is_running(self) -> bool:
        """Whether its process is there; one of another user counts."""
        with contextlib.suppress(PermissionError):
            try:
                os.kill(self.pid, 0)
            except ProcessLookupError:
                return False
        return True


def write_state(repository: Path, state: ServerState) -> None:
    """Writes the file for its owner alone. Raises RepositoryError where it can't be written."""
    path = _path(repository, state.http_port)
    scratch = path.with_suffix(f".{state.pid}.tmp")
    try:
        scratch.unlink(missing_ok=True)
        descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(dataclasses.asdict(state), file, indent=2, sort_keys=True)
        scratch.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            scratch.unlink()
        raise RepositoryError(f"{path}: can't be written: {error.strerror}") from None


def remove_state(repository: Path, http_port: int) -> None:
    with contextlib.suppress(OSError):
        _path(repository, http_port).unlink()


def running_servers(repository: Path) -> list[ServerState]:
    """Every server that runs on this repository, by HTTP port. A file that we can't read, or that
    is none of ours, is no server.
    """
    found = []
    for path in repository.glob(f"{STATE_PREFIX}*.json"):
        with contextlib.suppress(OSError, ValueError, TypeError):
            state = ServerState(**read_json(path))
            if state.is_running:
                found.append(state)
    return sorted(found, key=lambda state: state.http_port)


def unreadable_states(repository: Path) -> list[Path]:
    """The files of servers that somebody else has started: only who did may read them."""
    paths = sorted(repository.glob(f"{STATE_PREFIX}*.json"))
    return [path for path in paths if not os.access(path, os.R_OK)]


def _path(repository: Path, http_port: int) -> Path:
    return repository / f"{STATE_PREFIX}{http_port}.json"
