"""What has been measured so far: one JSON file, written anew after each figure.

A section that is measured again takes the place of what the file had of it; the others stay. So a
run that was cut off is finished by measuring the rest. Standard library only.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

SCHEMA_VERSION = 1
Row = dict[str, str | int | float | bool | None]


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
            values = json.loads(self.path.read_text(encoding="utf-8"))
            self.sections = {name: _measured(each) for name, each in values["sections"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{self.path} holds no results of perf.gpu ({type(error).__name__}: {error}): "
                "choose another --output, or remove it"
            ) from error

    def put(self, name: str, measured: Measured) -> None:
        """Sets one section and writes all, whole or not at all. Raises OSError."""
        self.sections[name] = measured
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self.path.with_name(f".{self.path.name}.new")
        fresh.write_text(json.dumps(self.as_json(), indent=2) + "\n", encoding="utf-8")
        fresh.replace(self.path)

    def as_json(self) -> dict[str, Any]:
        """Keys are the field names of ``Measured`` and ``Figure``."""
        sections = {name: asdict(measured) for name, measured in self.sections.items()}
        for section in sections.values():
            for figure in section["figures"]:
                if figure["target"]:
                    figure["target"]["met"] = Target(**figure["target"]).is_met
        return {
            "schema_version": SCHEMA_VERSION,
            "hardware": self.hardware,
            "versions": self.versions,
            "sections": sections,
        }


def figure_of(values: dict[str, Any]) -> Figure:
    """A figure out of its JSON form."""
    target = values.get("target")
    if target:
        target = Target(target["what"], target["value"], target["least"])
    return Figure(values["table"], values["row"], target or None)


def _measured(values: dict[str, Any]) -> Measured:
    known = {each.name for each in fields(Measured)}
    figures = [figure_of(figure) for figure in values["figures"]]
    kept = {name: value for name, value in values.items() if name in known}
    return Measured(**{**kept, "figures": figures})
