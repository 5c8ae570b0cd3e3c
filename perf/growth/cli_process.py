"""One command of ours as a user runs it: a process, and the time and memory that it took."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from generator.errors import EXIT_INTERRUPTED, PerfError

ROOT = Path(__file__).parents[2]
_CHILD = Path(__file__).with_name("child.py")
_MAX_LINES = 5


@dataclass(frozen=True)
class Taken:
    """By one process: from its start to its end, on its processors, and at most in memory."""

    wall_s: float
    cpu_s: float
    peak_memory_mib: float


def run_cli(arguments: list[str], says: str, env: Mapping[str, str] | None = None) -> Taken:
    """Runs ``hf-triton`` with ``arguments``.

    Raises PerfError where ``says`` is not part of its results, and KeyboardInterrupt where it was
    interrupted.
    """
    ran, taken = _run([sys.executable, "-m", "generator", *arguments], env or {})
    if taken["exit_code"] == EXIT_INTERRUPTED:
        raise KeyboardInterrupt
    if says not in ran.stdout:
        said = [*ran.stdout.splitlines()[-_MAX_LINES:], *ran.stderr.splitlines()[-_MAX_LINES:]]
        shown = "".join(f"\n    {line}" for line in said)
        code = int(taken["exit_code"])
        message = f"hf-triton {arguments[0]} ended with exit code {code} and did not say '{says}'"
        raise PerfError(f"{message}:{shown}")
    return Taken(taken["wall_s"], taken["cpu_s"], taken["peak_memory_kib"] / 1024)


def _run(
    command: list[str], env: Mapping[str, str]
) -> tuple[subprocess.CompletedProcess[str], dict[str, float]]:
    """What it printed, and what it took: nothing is written, for the disk may be full."""
    reader, writer = os.pipe()
    try:
        ran = subprocess.run(
            [sys.executable, "-IS", str(_CHILD), str(writer), *command],
            env={**os.environ, "PYTHONPATH": str(ROOT), **env},
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
    return ran, taken
