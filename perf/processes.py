"""Starts and ends child processes; on Linux the kernel ends them if we are killed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from generator.errors import PerfError
from generator.python_modules import end_with_parent, free_ports
from hf_triton.tritonserver.listen import Listen

_ROOT = Path(__file__).parents[1]
_NUM_LAST_LINES = 8  # log lines quoted in an error
_POLL_S = 0.3
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def our_environment() -> dict[str, str]:
    path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, "PYTHONPATH": path}


@contextlib.contextmanager
def running(
    command: Sequence[str],
    is_ready: Callable[[], bool],
    log: Path,
    start_timeout_s: float,
    stop_timeout_s: float,
    environment: Mapping[str, str],
) -> Iterator[None]:
    """Runs ``command`` for the length of the block. Raises PerfError with the log's last lines
    where it exits or is not ready in time, OSError.
    """
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # we pass on the terminal's Ctrl-C
            preexec_fn=end_with_parent,
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
        yield
    finally:
        process.terminate()
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(stop_timeout_s)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def body_of(url: str, timeout_s: float) -> bytes | None:
    """What a server answers, asked through no proxy; None for an error, or where nothing comes."""
    try:
        with _OPENER.open(url, timeout=timeout_s) as response:
            body: bytes = response.read()
    except (OSError, ValueError):
        return None
    return body


def free_listen() -> Listen:
    http, grpc, metrics = free_ports(3)
    return Listen("127.0.0.1", http, grpc, metrics)
