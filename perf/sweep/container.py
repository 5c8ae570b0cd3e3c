"""The command lines that run perf_analyzer in NVIDIA's SDK container, for machines where none of
its builds runs.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from perf.sweep.plan import ANALYZER, EXPORT_FILE

MOUNTED = "/sweep"


def container_commands(commands: Sequence[Sequence[str]], folder: Path, image: str) -> list[str]:
    """For each command one line; what is not perf_analyzer's needs no container."""
    lines = []
    for number, command in enumerate(commands, 1):
        # Each its own: perf_analyzer overwrites no file.
        command = [f"{number}_{EXPORT_FILE}" if w == EXPORT_FILE else w for w in command]
        if command[0] == ANALYZER:
            start = ["docker", "run", "--rm", "--network=host", "-v", f"{folder}:{MOUNTED}"]
            command = [*start, "-w", MOUNTED, image, *command]
        lines.append(shlex.join(command))
    return lines
