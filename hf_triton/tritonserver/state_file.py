"""The files by which verbs and servers find each other in the repository.

``.hf-triton-server-<http port>.json`` says where a running ``serve`` is reached. Written once the
server answers, removed at its end; one whose process is gone, or that was copied from another
repository, counts for nothing. ``.hf-triton-served.json`` has the models that ``serve`` and
``apply`` last loaded: a restarted tritonserver loads these.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from generator.repository.compare import readable_errors
from generator.repository.staging import write as write_file
from hf_triton.runtime.regular_file import read_json
from hf_triton.tritonserver.listen import Listen

STATE_PREFIX = ".hf-triton-server-"
SERVED_FILE = ".hf-triton-served.json"


@dataclass(frozen=True, kw_only=True)
class ServerState(Listen):
    """Where a server listens, for clients on this machine. ``pid`` is that of ``hf-triton serve``,
    ``config`` and ``repository`` are the absolute paths that it was started with.
    """

    pid: int
    config: str
    repository: str


def write_state(state: ServerState) -> None:
    """Raises RepositoryError where the file can't be written."""
    _write(_path(Path(state.repository), state.http_port), dataclasses.asdict(state))


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
            import psutil  # most verbs find no such file

            state = ServerState(**read_json(path))
            is_there = psutil.pid_exists(state.pid)  # one of another user counts
            if is_there and Path(state.repository).samefile(repository):
                found.append(state)
    return sorted(found, key=lambda state: state.http_port)


def _path(repository: Path, http_port: int) -> Path:
    return repository / f"{STATE_PREFIX}{http_port}.json"


def served_models(repository: Path) -> tuple[str, ...] | None:
    """The models of the record; None if it is missing or not ours."""
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        models = read_json(repository / SERVED_FILE)["models"]
        return tuple(str(name) for name in models)
    return None


def write_served(repository: Path, models: Iterable[str]) -> None:
    """Raises RepositoryError."""
    _write(repository / SERVED_FILE, {"models": sorted(models)})


def _write(path: Path, values: object) -> None:
    text = json.dumps(values, indent=2, sort_keys=True)
    with readable_errors():
        write_file(str(path), f"{text}\n".encode())
