"""The peers as processes: FastAPI in uvicorn, and MLServer; and the engine without a server."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from perf.encoders.environments import Environment
from perf.load.level import ROOT
from perf.load.level_process import LevelArguments
from perf.load.measure import Record
from perf.serving import free_listen

START_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 20.0
MAX_BATCH_SIZE, MAX_BATCH_TIME_S = 32, 0.02  # MLServer's adaptive batching


class PeerError(Exception):
    """A process that did not start or ended by itself."""


@dataclass(frozen=True)
class Peer:
    """A running one: who leads its processes, and where it listens (0: nowhere)."""

    pid: int
    port: int = 0


@contextmanager
def fastapi_app(environment: Environment, model_folder: Path, log: Path) -> Iterator[Peer]:
    """``encoder_app``, one worker. Raises ``PeerError``."""
    port = free_listen().http_port
    arguments = ["--app-dir", str(ROOT / "perf"), "--port", str(port), "--no-access-log"]
    command = [environment.program("uvicorn"), "encoder_app:app", *arguments]
    with running(command, {"MODEL": str(model_folder)}, log) as process:
        wait_ready(process, f"http://127.0.0.1:{port}/openapi.json", log)
        yield Peer(process.pid, port)


@contextmanager
def mlserver(
    environment: Environment, model_folder: Path, folder: Path, log: Path
) -> Iterator[Peer]:
    """MLServer with its settings in ``folder``. Raises ``PeerError``."""
    listen = free_listen()
    folder.mkdir()
    ports = {
        "http_port": listen.http_port,
        "grpc_port": listen.grpc_port,
        "metrics_port": listen.metrics_port,
    }
    write_json(folder / "settings.json", {"host": "127.0.0.1", "debug": False, **ports})
    write_json(folder / "model-settings.json", model_settings(model_folder))
    with running([environment.program("mlserver"), "start", str(folder)], {}, log) as process:
        url = f"http://127.0.0.1:{listen.http_port}/v2/models/encoder/ready"
        wait_ready(process, url, log)
        yield Peer(process.pid, listen.http_port)


def model_settings(model_folder: Path) -> dict[str, object]:
    """A feature-extraction model with adaptive batching."""
    extra = {
        "task": "feature-extraction",
        "pretrained_model": str(model_folder),
        "framework": "pt",
        "device": -1,
    }
    return {
        "name": "encoder",
        "implementation": "mlserver_huggingface.HuggingFaceRuntime",
        "max_batch_size": MAX_BATCH_SIZE,
        "max_batch_time": MAX_BATCH_TIME_S,
        "parameters": {"extra": extra},
    }


def write_json(file: Path, content: object) -> None:
    file.write_text(json.dumps(content, indent=2), encoding="utf-8")


@contextmanager
def running(
    command: list[str], environment: Mapping[str, str], log: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """A process with all it starts, ended at the end; what it prints goes to ``log``, and beside it
    what it writes where it is started, as MLServer does its metrics.
    """
    # PYTHONPATH would show it our packages.
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with (
        log.open("wb") as output,
        subprocess.Popen(
            command,
            cwd=log.parent,
            env={**inherited, **environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as process,
    ):
        try:
            yield process
        finally:
            end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    """Ends a process group, gently at first."""
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        pass
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def wait_ready(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    """Returns when ``url`` answers. Raises ``PeerError``."""
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while not answers(url):
        if process.poll() is not None or time.monotonic() > deadline_s:
            printed = log.read_text(encoding="utf-8", errors="replace")[-2000:]
            raise PeerError(f"{log.stem} did not start:\n{printed}")
        time.sleep(0.2)


def answers(url: str) -> bool:
    """Whether a GET gets a 200."""
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return bool(response.status == 200)
    except OSError:
        return False


class InProcess:
    """The process of ``perf.encoders.in_process``, which runs one level at a time."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.pid = process.pid

    def records_of(
        self, arguments: LevelArguments, on_answer: Callable[[int], object]
    ) -> list[Record]:
        """Runs one level, calling ``on_answer`` with the number of answers so far."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(arguments.command_line()) + "\n")
        self._process.stdin.flush()
        records = list[Record]()
        for line in self.lines():
            records.append(Record(**json.loads(line)))
            on_answer(len(records))
        return records

    def lines(self) -> Iterator[str]:
        """What it prints until an empty line. Raises ``PeerError`` when it ends before that."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if not line.strip():
                return
            yield line
        raise PeerError(f"the engine's process ended: exit code {self._process.wait()}")


@contextmanager
def in_process(model_folder: Path, references: Path) -> Iterator[InProcess]:
    """The engine of a generated model, loaded. Raises ``PeerError``."""
    files = ["--folder", str(model_folder), "--references", str(references)]
    with subprocess.Popen(
        [sys.executable, "-m", "perf.encoders.in_process", *files],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "model_templates")},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        engine = InProcess(process)
        try:
            list(engine.lines())
            yield engine
        finally:
            process.terminate()
