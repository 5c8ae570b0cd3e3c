"""Servers that are not ours as processes: started, waited for, ended with all they started."""

from __future__ import annotations

import os
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from generator.errors import PerfError
from hf_triton.tritonserver.listen import Listen
from perf.orphans import end
from perf.serving import free_listen

HOST = "127.0.0.1"
NUM_PORTS = 3  # HTTP, gRPC, metrics
START_TIMEOUT_S = 600.0  # vLLM takes half a minute, and more where others are busy
STOP_TIMEOUT_S = 20.0
NUM_LAST_LINES = 12
ANSWERED = 'HTTP/1.1" 200'  # in uvicorn's log of accesses
# PYTHONPATH would show a peer our packages; every service takes the threads it takes by itself.
NOT_INHERITED = (
    "PYTHONPATH",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "TORCH_NUM_THREADS",
)


class PeerError(Exception):
    """A process that did not start or ended by itself."""


@contextmanager
def running(
    command: Sequence[str], environment: Mapping[str, str], log: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """A process with all it starts, ended at the end; what it prints goes to ``log``, and beside it
    what it writes where it is started, as MLServer does its metrics. Raises ``PeerError``.
    """
    inherited = {name: value for name, value in os.environ.items() if name not in NOT_INHERITED}
    with log.open("wb") as output:
        try:
            process = subprocess.Popen(
                command,
                cwd=log.parent,
                env={**inherited, **environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise PeerError(f"{log.stem} did not start: {command[0]}: {error.strerror}") from error
        with process:
            try:
                yield process
            finally:
                end(process, STOP_TIMEOUT_S)


def wait_ready(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    """Returns when ``url`` answers. Raises ``PeerError`` with the last lines of the log."""
    deadline_s = time.monotonic() + START_TIMEOUT_S
    is_up = False
    while not is_up:
        is_up = answers(url)
        if process.poll() is not None:  # it may be somebody else who answered
            how = f"it ended with exit code {process.returncode}"
            raise PeerError(f"{log.stem} did not start: {how}\n{tail(log)}")
        if not is_up and time.monotonic() > deadline_s:
            raise PeerError(f"{log.stem} is not up after {START_TIMEOUT_S:.0f} s:\n{tail(log)}")
        time.sleep(0.0 if is_up else 0.2)


def tail(log: Path) -> str:
    """The last lines that a process printed, but for those of requests that went well."""
    printed = log.read_text(encoding="utf-8", errors="replace").splitlines()
    worth = [line for line in printed if line.strip() and ANSWERED not in line]
    return "\n".join(worth[-NUM_LAST_LINES:])


def answers(url: str) -> bool:
    """Whether a GET gets a 200."""
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return bool(response.status == 200)
    except OSError:
        return False


class Ports:
    """Free ones of this machine out of a range, or wherever the system has some."""

    def __init__(self, allowed: range | None = None) -> None:
        self._allowed = allowed

    def listen(self) -> Listen:
        """Three ports that nobody listens on now. Raises ``PerfError``."""
        if self._allowed is None:
            return free_listen()
        free = [port for port in self._allowed if is_free(port)][:NUM_PORTS]
        if len(free) < NUM_PORTS:
            first, last = self._allowed[0], self._allowed[-1]
            raise PerfError(
                f"--ports {first}-{last}: {len(free)} of them are free, expected {NUM_PORTS} for a "
                "server; end what listens there, or name a longer range"
            )
        http, grpc, metrics = free
        return Listen(HOST, http, grpc, metrics)


def is_free(port: int) -> bool:
    """Whether one can listen on it."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True
