"""The command lines that run perf_analyzer in NVIDIA's SDK container, for machines where none of
its builds runs.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from perf.sweep.plan import ANALYZER

MOUNTED = "/sweep"


def container_commands(commands: Sequence[Sequence[str]], folder: Path, image: str) -> list[str]:
    """For each command one line; what is not perf_analyzer's needs no container."""
    lines = []
    for command in commands:
        if command[0] == ANALYZER:
            start = ["docker", "run", "--rm", "--network=host", "-v", f"{folder}:{MOUNTED}"]
            command = [*start, "-w", MOUNTED, image, *command]
        lines.append(shlex.join(command))
    return lines
