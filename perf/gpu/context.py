"""What a section is told, and how it hands on what it finds."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from perf.gpu.results import Figure, Row, Target


class SkippedError(Exception):
    """The section can't be measured on this machine; the text says why."""


@dataclass(frozen=True)
class Context:
    """What a section is told: ``device`` is torch's name of one, ``folder`` a temporary one."""

    device: str
    tiny: bool
    shape: str
    folder: Path
    seed: int
    write: Callable[[dict[str, Any]], None]

    def emit(self, table: str, row: Row, target: Target | None = None) -> None:
        """Hands on one figure."""
        self.write(asdict(Figure(table, row, target)))

    @staticmethod
    def say(text: str) -> None:
        """Progress."""
        print(f"  {text}", file=sys.stderr, flush=True)
