"""What a section hands on, and what has been measured so far: one JSON file, written anew after
each figure.

A section that is measured again takes the place of what the file had of it; the others stay. So a
run that was cut off is finished by measuring the rest. Standard library only.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from perf.report.typed import made
from perf.report.written import write_text

SCHEMA_VERSION = 1
Row = dict[str, str | int | float | bool | None]


class SkippedError(Exception):
    """The section can't be measured on this machine; the text says why."""


@dataclass(frozen=True)
class Target:
    """What a figure was to reach."""

    what: str
    value: float
    least: float

    @property
    def is_met(self) -> bool:
        return self.value >= self.least


@dataclass(frozen=True)
class Figure:
    """One row of one of a section's tables; units stand in the keys of ``row``."""

    table: str
    row: Row
    target: Target | None = None


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


@dataclass
class Measured:
    """One section: how it ended (``done``, or ``failed``, ``skipped``, ``cut off`` and why)."""

    state: str
    created: str  # ISO 8601, UTC
    command: str
    commit: str
    device: dict[str, Any]  # the GPU, its driver, torch
    duration_s: float = 0.0
    figures: list[Figure] = field(default_factory=list)

    @property
    def is_bad(self) -> bool:
        """Whether it should have been measured, and was not or not whole."""
        return self.state != "done" and not self.state.startswith("skipped")


class Results:
    """The sections by name, on disk at ``path`` from ``put`` on."""

    def __init__(self, path: Path, hardware: dict[str, Any], versions: dict[str, str]) -> None:
        self.path, self.hardware, self.versions = path, hardware, versions
        self.sections: dict[str, Measured] = {}

    def keep(self) -> None:
        """Takes over what ``path`` has, if anything. Raises ValueError: it is something else."""
        if not self.path.exists():
            return
        try:
            values = json.loads(self.path.read_text(encoding="utf-8"))["sections"]
            kept = {name: made(Measured, each, name) for name, each in values.items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{self.path} holds no results of perf.gpu ({type(error).__name__}: {error}): "
                "choose another --output, or remove it"
            ) from error
        self.sections = {
            name: replace(each, figures=list(each.figures)) for name, each in kept.items()
        }

    def put(self, name: str, measured: Measured) -> None:
        """Sets one section and writes all, whole or not at all. Raises OSError."""
        self.sections[name] = measured
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_text(self.path, json.dumps(self.as_json(), indent=2) + "\n")

    def as_json(self) -> dict[str, Any]:
        """Keys are the field names of ``Measured`` and ``Figure``; a target has ``met``, too."""
        sections = {name: asdict(measured) for name, measured in self.sections.items()}
        for section in sections.values():
            for target in (figure["target"] for figure in section["figures"]):
                if target:
                    target["met"] = Target(**target).is_met
        return {
            "schema_version": SCHEMA_VERSION,
            "hardware": self.hardware,
            "versions": self.versions,
            "sections": sections,
        }


def figure_of(values: dict[str, Any]) -> Figure:
    """A figure out of its JSON form."""
    return made(Figure, values)
