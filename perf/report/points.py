"""Puts the repeats of a load together into a point, and says in what loads differ.

Knows loads; of what was measured only that a metric takes a figure of it.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from perf.report.metrics import Metric, plain
from perf.report.schema import Load, Measurement, Value

Key = tuple[str, str]  # kind (load or setting) and name of a dimension

_LOAD_WORDS = {
    "target": "target",
    "endpoint": "endpoint",
    "concurrency": "concurrency",
    "request_rate": "request rate",
    "batch_size": "batch size",
    "input_name": "input",
    "prompt_tokens": "prompt tokens",
    "output_tokens": "output tokens",
}
TARGET, ENDPOINT = ("load", "target"), ("load", "endpoint")
CONCURRENCY, REQUEST_RATE = ("load", "concurrency"), ("load", "request_rate")
WORK = tuple(("load", name) for name in ("input_name", "prompt_tokens", "output_tokens"))


def dimensions(load: Load) -> dict[Key, Value]:
    """Everything that tells one load from another; what does not apply is None."""
    of_load: dict[Key, Value] = {("load", name): getattr(load, name) for name in _LOAD_WORDS}
    return of_load | {("setting", name): load.settings[name] for name in sorted(load.settings)}


def word(key: Key) -> str:
    """What a dimension is called."""
    return _LOAD_WORDS[key[1]] if key[0] == "load" else key[1]


def told(key: Key, value: Value) -> str:
    """A value with as many words as it needs: ``http-infer``, ``batch size 8``."""
    if key in (TARGET, ENDPOINT, ("setting", "run")):
        return str(value)
    if value is None or value == "":
        return f"no {word(key)}"
    return f"{word(key)} {number_told(value)}"


def number_told(value: Value) -> str:
    """A number without needless digits; anything else as it is."""
    return plain(value) if isinstance(value, float) else str(value)


def words_for(keys: Sequence[Key], values: Sequence[Value]) -> str:
    """Those values that there are; settings that a load doesn't have are as they were."""
    pairs = [pair for pair in zip(keys, values, strict=True) if pair[1] not in (None, "")]
    if keys and not pairs and all(key[0] == "setting" for key in keys):
        return "the settings as they are"
    return ", ".join(told(key, value) for key, value in pairs)


@dataclass(frozen=True)
class Spread:
    """The median of some repeats, the least and the most."""

    middle: float
    least: float
    most: float


@dataclass(frozen=True)
class Point:
    """All repeats of one load, in the order in which they were made."""

    load: Load
    repeats: tuple[Measurement, ...]

    def spread(self, metric: Metric) -> Spread | None:
        """None where no repeat has the figure."""
        values = [v for each in self.repeats if (v := metric.value(each)) is not None]
        if not values:
            return None
        return Spread(statistics.median(values), min(values), max(values))

    def middle(self, metric: Metric) -> float | None:
        """The median over the repeats."""
        spread = self.spread(metric)
        return None if spread is None else spread.middle

    @property
    def num_errors(self) -> int:
        return sum(each.num_errors for each in self.repeats)

    @property
    def is_stable(self) -> bool:
        """Whether every repeat met its load generator's rule."""
        return all(each.stable for each in self.repeats)

    @property
    def doubts(self) -> list[str]:
        """What the server counted otherwise than clients, in any repeat."""
        return list(dict.fromkeys(doubt for each in self.repeats for doubt in each.doubts))


def points(measurements: Iterable[Measurement]) -> list[Point]:
    """One for each load, in the order in which loads were first measured."""
    found: dict[frozenset[tuple[Key, Value]], list[Measurement]] = {}
    for each in measurements:
        found.setdefault(identity(each.load), []).append(each)
    return [Point(repeats[0].load, tuple(repeats)) for repeats in found.values()]


def identity(load: Load) -> frozenset[tuple[Key, Value]]:
    """Equal for equal loads, in whichever order their settings stand."""
    return frozenset(dimensions(load).items())


def varying(loads: Sequence[Load]) -> list[Key]:
    """The dimensions in which they differ; a setting that one of them lacks is one."""
    of_each = [dimensions(load) for load in loads]
    keys = dict.fromkeys(key for each in of_each for key in each)
    return [key for key in keys if len({each.get(key) for each in of_each}) > 1]


def grouped(
    found: Iterable[Point], key: Callable[[Point], tuple[Value, ...]]
) -> dict[tuple[Value, ...], list[Point]]:
    """By ``key``, groups in the order of their first points."""
    groups: dict[tuple[Value, ...], list[Point]] = {}
    for point in found:
        groups.setdefault(key(point), []).append(point)
    return groups


def values_at(load: Load, keys: Sequence[Key]) -> tuple[Value, ...]:
    """The load's values in these dimensions."""
    of_load = dimensions(load)
    return tuple(of_load.get(key) for key in keys)
