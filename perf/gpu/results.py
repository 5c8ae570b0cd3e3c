"""What a section hands on, and what has been measured so far: one JSON file, written anew after
each figure.

A section that is measured again takes the place of what the file had of it; the others stay. So a
run that was cut off is finished by measuring the rest. Standard library only.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from perf.report.typed import made
from perf.report.written import write_text

SCHEMA_VERSION = 1
NOT_FINISHED = "not finished"
Row = dict[str, str | int | float | bool | None]


class SkippedError(Exception):
    """The section can't be measured on this machine; the text says why."""


@dataclass(frozen=True)
class Target:
    """What a figure was to reach."""

    what: str
    value: float
    least: float
    is_exact: bool = False  # whether it is counted or compared, not timed

    @property
    def is_met(self) -> bool:
        return self.value >= self.least


@dataclass(frozen=True)
class Figure:
    """One row of one of a section's tables; units stand in the keys of ``row``."""

    table: str
    row: Row
    target: Target | None = None


def counted(figure: Figure) -> Figure:
    """What a figure says on a fake GPU: what was compared and counted, in words and whole numbers;
    what was measured is left out.
    """
    items = figure.row.items()
    row: Row = {key: None if isinstance(value, float) else value for key, value in items}
    target = figure.target if figure.target and figure.target.is_exact else None
    return Figure(figure.table, row, target)


@dataclass(frozen=True)
class Context:
    """What a section is told: ``device`` is torch's name of one, ``folder`` a temporary one. Where
    the GPU is a fake one, models are tiny and run on the CPU, and no time means anything.
    """

    device: str
    is_fake: bool
    shape: str
    folder: Path
    seed: int
    take: Callable[[Figure], object]

    def emit(self, table: str, row: Row, target: Target | None = None) -> None:
        """Hands on one figure."""
        self.take(Figure(table, row, target))

    @staticmethod
    def say(text: str) -> None:
        """Progress."""
        say(f"  {text}")


@dataclass
class Measured:
    """One section: how it ended (``done``, or ``failed``, ``skipped``, ``cut off`` and why)."""

    state: str
    created: str  # ISO 8601, UTC
    command: str
    commit: str
    device: dict[str, Any]  # the GPU, its driver, torch and other versions
    duration_s: float = 0.0
    figures: Sequence[Figure] = ()
    code: str = ""  # which code it was, where no commit says so: ``machine.code``

    @property
    def is_bad(self) -> bool:
        """Whether it should have been measured, and was not or not whole, or does not agree."""
        if self.state != "done":
            return not self.state.startswith("skipped")
        targets = (figure.target for figure in self.figures)
        return any(target.is_exact and not target.is_met for target in targets if target)


@dataclass
class Results:
    """The sections by name; keys of the file are the field names, and a target has ``met``, too."""

    schema_version: int
    hardware: dict[str, Any]
    versions: dict[str, str]
    sections: dict[str, Measured] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Results:
        """What was written. Raises ValueError where ``path`` is something else."""
        try:
            return made(cls, json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            raise ValueError(
                f"{path} holds no results of perf gpu ({error}): choose another --output, or "
                "remove it"
            ) from error

    def write(self, path: Path) -> None:
        """Writes all, whole or not at all. Raises OSError."""
        values = asdict(self)
        for section in values["sections"].values():
            for target in filter(None, (figure["target"] for figure in section["figures"])):
                target["met"] = Target(**target).is_met
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(values, indent=2) + "\n")


def say(text: str) -> None:
    """Progress."""
    print(text, file=sys.stderr, flush=True)
