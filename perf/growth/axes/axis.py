"""What an axis is: one size that is doubled from point to point, and what is measured at each.

Knows no particular axis; named.py lists them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from perf.report.schema import Load, Measurement


@dataclass(frozen=True)
class Step:
    """One point of an axis, once more; from 0."""

    value: int
    repeat: int


@dataclass(frozen=True)
class Cost:
    """What one target took at one step. ``figures`` have their unit in their names, as in
    ``wall_s`` and ``peak_memory_mib``.
    """

    target: str
    figures: Mapping[str, float]
    duration_s: float
    num_requests: int = 0
    num_errors: int = 0
    first_error: str | None = None


@dataclass(frozen=True)
class Place:
    """Where a session works: a folder of its own that is gone afterwards, the seed of models and
    loads, and who is told what goes on.
    """

    folder: Path
    seed: int
    say: Callable[[str], None] = field(default=lambda _: None)


Measure = Callable[[Step], Iterable[Cost]]
Session = Callable[[Place], AbstractContextManager[Measure]]


@dataclass(frozen=True)
class Chart:
    """Figures that are drawn together, one line for each target and figure; of all targets, or
    of ``targets``.
    """

    title: str
    figures: tuple[str, ...]
    targets: tuple[str, ...] = ()


@dataclass(frozen=True)
class Axis:
    """``session`` opens what all points share, such as a server, and measures a step at a time; it
    yields a cost for each of ``targets``. ``note`` says in the report what was done;
    ``memory_gib`` is about how much a point needs, to stop before the machine has too little.
    """

    name: str
    title: str
    unit: str
    points: tuple[int, ...]
    quick_points: tuple[int, ...]
    highest: int
    targets: tuple[str, ...]
    charts: tuple[Chart, ...]
    session: Session
    note: str
    repeats: int = 3
    memory_gib: Callable[[int], float] = field(default=lambda _: 0.5)

    def load(self, target: str, value: int) -> Load:
        """Under what a target's cost at ``value`` is kept."""
        return Load(target=target, endpoint="", settings={"axis": self.name, "value": value})


def doubled(first: int, last: int) -> tuple[int, ...]:
    """``first``, twice that, and so on, and ``last``."""
    return (first, *doubled(2 * first, last)) if first < last else (last,)


def place_of(measurement: Measurement) -> tuple[str, str, int]:
    """Axis, target and value of a measurement of ours."""
    settings = measurement.load.settings
    return str(settings["axis"]), measurement.load.target, int(settings["value"] or 0)
