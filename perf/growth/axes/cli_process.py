"""One command of ours as a user runs it: a process, and the time and memory that it took."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from generator.errors import EXIT_INTERRUPTED, PerfError

ROOT = Path(__file__).parents[3]
_MAX_LINES = 5
# A process of its own because a process's peak memory begins at that of the one it was forked from:
# this one is small. What it finds goes to a pipe, for the disk may be full.
_RUN = """\
import json, os, subprocess, sys, time
begin = time.perf_counter()
process = subprocess.Popen(sys.argv[2:], stdin=subprocess.DEVNULL)
while True:
    try:
        _, status, used = os.wait4(process.pid, 0)
        break
    except KeyboardInterrupt:  # the terminal has told the command too
        continue
taken = {
    "wall_s": time.perf_counter() - begin,
    "cpu_s": used.ru_utime + used.ru_stime,
    "peak_memory_mib": used.ru_maxrss / 1024,
    "exit_code": os.waitstatus_to_exitcode(status),
}
os.write(int(sys.argv[1]), json.dumps(taken).encode())
"""


def run_cli(
    arguments: list[str], says: str, env: Mapping[str, str] | None = None
) -> dict[str, float]:
    """Runs ``hf-triton`` with ``arguments``; returns ``wall_s``, ``cpu_s`` and ``peak_memory_mib``.

    Raises PerfError where ``says`` is not part of its results, and KeyboardInterrupt where it was
    interrupted.
    """
    reader, writer = os.pipe()
    command = [sys.executable, "-m", "generator", *arguments]
    try:
        ran = subprocess.run(
            [sys.executable, "-IS", "-c", _RUN, str(writer), *command],
            env={**os.environ, "PYTHONPATH": str(ROOT), **(env or {})},
            pass_fds=[writer],
            capture_output=True,
            text=True,
            errors="replace",
            check=True,
        )
        taken: dict[str, float] = json.loads(os.read(reader, 4096))
    finally:
        os.close(reader)
        os.close(writer)
    code = taken.pop("exit_code")
    if code == EXIT_INTERRUPTED:
        raise KeyboardInterrupt
    if says not in ran.stdout:
        said = [*ran.stdout.splitlines()[-_MAX_LINES:], *ran.stderr.splitlines()[-_MAX_LINES:]]
        message = f"hf-triton {arguments[0]} ended with exit code {code} and did not say '{says}'"
        raise PerfError("\n    ".join([f"{message}:", *said]))
    return taken
