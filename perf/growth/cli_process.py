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


def run_cli(
    folder: Path, arguments: list[str], says: str, env: Mapping[str, str] | None = None
) -> Taken:
    """Runs ``hf-triton`` with ``arguments``, what it prints in ``folder``.

    Raises PerfError where ``says`` is not part of its results, and KeyboardInterrupt where it was
    interrupted.
    """
    result, results, messages = (
        folder / name for name in ("taken.json", "results.txt", "messages.txt")
    )
    result.unlink(missing_ok=True)
    command = [sys.executable, "-IS", str(_CHILD), str(result)]
    command += [sys.executable, "-m", "generator", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **(env or {})}
    with results.open("wb") as out, messages.open("wb") as err:
        subprocess.run(command, stdout=out, stderr=err, env=environment, check=True)
    taken = json.loads(result.read_text(encoding="utf-8"))
    if taken["exit_code"] == EXIT_INTERRUPTED:
        raise KeyboardInterrupt
    if says not in results.read_text(encoding="utf-8"):
        said = [*_last_lines(results), *_last_lines(messages)]
        shown = "".join(f"\n    {line}" for line in said)
        code = taken["exit_code"]
        message = f"hf-triton {arguments[0]} ended with exit code {code} and did not say '{says}'"
        raise PerfError(f"{message}:{shown}")
    return Taken(taken["wall_s"], taken["cpu_s"], taken["peak_memory_kib"] / 1024)


def _last_lines(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8", errors="replace").splitlines()[-_MAX_LINES:]
