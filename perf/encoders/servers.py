"""The peers as processes: FastAPI in uvicorn, and MLServer; and the engine without a server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from perf.baselines.environments import Environment
from perf.baselines.processes import running, wait_ready
from perf.load.level import ROOT
from perf.load.resident import Resident, resident
from perf.serving import free_listen

MAX_BATCH_SIZE, MAX_BATCH_TIME_S = 32, 0.02  # MLServer's adaptive batching


@dataclass(frozen=True)
class Peer:
    """A running one: who leads its processes, and where it listens (0: nowhere)."""

    pid: int
    port: int = 0


@contextmanager
def fastapi_app(environment: Environment, model_folder: Path, log: Path) -> Iterator[Peer]:
    """``app.py``, one worker. Raises ``PeerError``."""
    port = free_listen().http_port
    arguments = [
        "--app-dir",
        str(ROOT),
        "--port",
        str(port),
        "--no-access-log",
    ]
    command = [environment.program("uvicorn"), "perf.encoders.app:app", *arguments]
    with running(command, {"MODEL": str(model_folder)}, log) as process:
        wait_ready(process, f"http://127.0.0.1:{port}/openapi.json", log)
        yield Peer(process.pid, port)


def in_process(model_folder: Path, references: Path) -> AbstractContextManager[Resident]:
    """The engine of a generated model, loaded. Raises ``ResidentError``."""
    files = ["--folder", str(model_folder), "--references", str(references)]
    return resident("perf.encoders.in_process", files)
