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
_CHILD = Path(__file__).with_name("child.py")
_MAX_LINES = 5


def run_cli(
    arguments: list[str], says: str, env: Mapping[str, str] | None = None
) -> dict[str, float]:
    """Runs ``hf-triton`` with ``arguments``; returns ``wall_s``, ``cpu_s`` and ``peak_memory_mib``.

    Raises PerfError where ``says`` is not part of its results, and KeyboardInterrupt where it was
    interrupted.
    """
    reader, writer = os.pipe()  # nothing is written to the disk, which may be full
    try:
        ran = subprocess.run(
            [
                *(sys.executable, "-IS", str(_CHILD), str(writer)),
                *(sys.executable, "-m", "generator", *arguments),
            ],
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
