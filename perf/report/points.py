"""Groups the repeats of a load into a point, and finds the dimensions in which loads differ. Knows
nothing of a measurement's figures.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields

from perf.report.metrics import Metric
from perf.report.schema import Load, Measurement, Value

_OF_LOAD = tuple(each.name for each in fields(Load) if each.name != "settings")
_SAID_ALONE = ("target", "endpoint", "run")  # values that need no label
WORK = ("input_name", "prompt_tokens", "output_tokens")


def dimensions(load: Load) -> dict[str, Value]:
    """All fields and settings of a load by name."""
    return {name: getattr(load, name) for name in _OF_LOAD} | dict(sorted(load.settings.items()))


def word(name: str) -> str:
    """A dimension's name in a sentence."""
    return "input" if name == "input_name" else name.replace("_", " ") if name in _OF_LOAD else name


def words_for(load: Load, names: Sequence[str]) -> str:
    """Describes the load by these dimensions: ``http-infer, concurrency 8``."""
    of_load = dimensions(load)
    pairs = [(name, of_load.get(name)) for name in names]
    return ", ".join(
        number(value) if name in _SAID_ALONE else f"{word(name)} {number(value)}"
        for name, value in pairs
        if value not in (None, "")
    )


def load_words(load: Load, among: Sequence[Load] = ()) -> str:
    """Describes how this load differs from the others; all of it where there are no others."""
    names = varying(among) or [
        n for n, v in dimensions(load).items() if (n, v) != ("batch_size", 1)
    ]
    return words_for(load, names)


@dataclass(frozen=True)
class Point:
    """All repeats of one load, in the order in which they were made."""

    load: Load
    repeats: tuple[Measurement, ...]

    def values(self, metric: Metric) -> list[float]:
        """The figure of each repeat that has it."""
        return [v for each in self.repeats if (v := metric.value(each)) is not None]

    def middle(self, metric: Metric) -> float | None:
        """The median over the repeats; None where no repeat has the figure."""
        values = self.values(metric)
        return statistics.median(values) if values else None

    @property
    def num_errors(self) -> int:
        return sum(each.num_errors for each in self.repeats)

    @property
    def is_sound(self) -> bool:
        """Whether all requests were answered without errors."""
        return not self.num_errors and any(each.num_requests for each in self.repeats)

    def remarks(self) -> list[str]:
        """Reasons to doubt the figures."""
        asked = self.num_errors + sum(each.num_requests for each in self.repeats)
        said = [f"{self.num_errors:,} of {asked:,} requests failed"] if self.num_errors else []
        unstable = sum(not each.stable for each in self.repeats)
        of = f" {unstable} of {len(self.repeats)} times" if len(self.repeats) > 1 else ""
        said += [f"unstable{of}"] if unstable else []
        return said + list(dict.fromkeys(doubt for each in self.repeats for doubt in each.doubts))


def points(measurements: Iterable[Measurement]) -> list[Point]:
    """One point for each load, in the order of first measurement."""
    found: dict[object, list[Measurement]] = {}
    for each in measurements:
        found.setdefault(frozenset(dimensions(each.load).items()), []).append(each)
    return [Point(repeats[0].load, tuple(repeats)) for repeats in found.values()]


def varying(loads: Sequence[Load]) -> list[str]:
    """The dimensions in which loads differ; a setting that only some loads have counts as one."""
    of_each = [dimensions(load) for load in loads]
    names = dict.fromkeys(name for each in of_each for name in each)
    return [name for name in names if len({each.get(name) for each in of_each}) > 1]


def grouped(found: Iterable[Point], key: Callable[[Point], str]) -> dict[str, list[Point]]:
    """Groups points by ``key``, in the order of each group's first point."""
    groups: dict[str, list[Point]] = {}
    for point in found:
        groups.setdefault(key(point), []).append(point)
    return groups


def number(value: Value) -> str:
    """Formats a number without trailing zeros, None as an empty text, anything else by ``str``."""
    if value is None:
        return ""
    return f"{value:g}" if isinstance(value, float) else str(value)
