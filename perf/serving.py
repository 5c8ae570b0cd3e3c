"""Starts servers for a measurement: a tritonserver on one model repository, or any command with a
readiness URL.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tqdm import tqdm  # type: ignore[import-untyped]

from generator.errors import PerfError
from hf_triton.tritonserver.listen import Listen
from hf_triton.tritonserver.process import TritonServer
from perf.orphans import end, killed_with_parent

_NUM_LAST_LINES = 8  # log lines quoted in an error
_POLL_S = 0.3


@contextmanager
def serving(
    repository: Path,
    *models: str,
    listen: Listen | None = None,
    write_log: Callable[[str], None] | None = None,
) -> Iterator[TritonServer]:
    """Serves ``models`` of ``repository``, on free ports unless given. Raises ``ServerError``.
    Models load one after the other, because each times its own kernels while it loads.
    """
    write_log = write_log or write_beside_bar
    with TritonServer(repository, listen or free_listen(), write_log=write_log) as server:
        for model in models:
            server.wait_ready([model])
        yield server


@contextmanager
def running(
    command: Sequence[str],
    is_ready: Callable[[], bool],
    log: Path,
    start_timeout_s: float,
    stop_timeout_s: float,
    environment: Mapping[str, str],
) -> Iterator[int]:
    """Runs ``command`` until the block ends, ready on entry; output goes to ``log``. Raises
    PerfError with the log's last lines where it exits or is not ready in time, OSError.
    """
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # we pass on the terminal's Ctrl-C
            preexec_fn=killed_with_parent(signal.SIGTERM),
        )
    try:
        deadline = time.monotonic() + start_timeout_s
        while not is_ready():
            if process.poll() is not None or time.monotonic() > deadline:
                lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
                last = "".join(f"\n    {line}" for line in lines[-_NUM_LAST_LINES:])
                what = "ended" if process.poll() is not None else "is not ready in time"
                raise PerfError(f"{log.stem} {what}; {log} ends with:{last}")
            time.sleep(_POLL_S)
        yield process.pid
    finally:
        end(process, stop_timeout_s)


def free_listen() -> Listen:
    """Three free ports of this machine."""
    with ExitStack() as held:
        probes = [held.enter_context(socket.socket()) for _ in range(3)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return Listen("127.0.0.1", *(probe.getsockname()[1] for probe in probes))


def write_beside_bar(line: str) -> None:
    """Writes a line of the server's log above the progress bar."""
    tqdm.write(line, file=sys.stderr)
