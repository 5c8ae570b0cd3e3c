"""The figures of a measurement that are shown and compared, and its load: repeats of one load are a
point, and loads are described by the dimensions in which they differ.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from perf.report.schema import Load, Measurement, Value

Item = TypeVar("Item")
Key = TypeVar("Key")
_OF_LOAD = tuple(each.name for each in fields(Load) if each.name != "settings")
_WITHOUT_LABEL = ("target", "endpoint", "run")  # values that need no label
WORK = ("input_name", "prompt_tokens", "output_tokens")


@dataclass(frozen=True)
class Metric:
    """One figure: ``place`` is its path in a Measurement, ``scale`` converts it to ``unit``."""

    label: str
    unit: str
    place: str
    lower_is_better: bool | None = None  # None: no order
    scale: float = 1.0

    def value(self, measurement: Measurement) -> float | None:
        found: Any = measurement
        for name in self.place.split("."):
            found = found.get(name) if isinstance(found, Mapping) else getattr(found, name, None)
        return None if found is None else found * self.scale

    @property
    def heading(self) -> str:
        return f"{self.label} ({self.unit})"


def _times(place: str, label: str) -> dict[str, Metric]:
    shares = ("p50", "p99")
    return {one: Metric(f"{label} {one}", "ms", f"{place}.{one}_ms", True) for one in shares}


THROUGHPUT = Metric("throughput", "requests/s", "rows_per_s", False)
THROUGHPUT_OF_ROWS = Metric("throughput", "inputs/s", "rows_per_s", False)
TOKENS = Metric("output tokens", "tokens/s", "output_tokens_per_s", False)
LATENCY = _times("latency", "latency")
FIRST_TOKEN = _times("time_to_first_token", "first token")
BETWEEN_TOKENS = _times("inter_token_latency", "between tokens")
# A server's and a machine's use; report.json has more.
USE = (
    Metric("batch occupancy", "rows", "server.batch_occupancy"),
    Metric("time in queue", "%", "server.queue_share", scale=100),
    Metric("CPU", "% of all cores", "machine.cpu_share", scale=100),
    Metric("server's CPU", "cores", "machine.server_cpu_cores"),
    Metric("memory", "GiB", "machine.memory_gib"),
    Metric("GPU's memory", "GiB", "machine.gpu_memory_gib"),
)


def judged_metrics(measurements: Iterable[Measurement]) -> list[Metric]:
    times = [metric for kind in (LATENCY, FIRST_TOKEN, BETWEEN_TOKENS) for metric in kind.values()]
    return [throughput_of(measurements), TOKENS, *times]


def throughput_of(measurements: Iterable[Measurement]) -> Metric:
    """Rows/s where any request had several rows; else requests/s."""
    batched = any(each.load.batch_size != 1 for each in measurements)
    return THROUGHPUT_OF_ROWS if batched else THROUGHPUT


def shown(value: float | None) -> str:
    """Formats three digits, more before the point: 0.123, 1.23, 12.3, 123, 1,234."""
    if value is None:
        return ""
    size = abs(value)
    digits = 0 if size >= 99.95 or value == int(value) else 1 if size >= 9.995 else 2
    return f"{value:,.{digits}f}" if size >= 0.995 or value == int(value) else f"{value:.3g}"


def dimensions(load: Load) -> dict[str, Value]:
    return {name: getattr(load, name) for name in _OF_LOAD} | dict(sorted(load.settings.items()))


def word(name: str) -> str:
    return "input" if name == "input_name" else name.replace("_", " ") if name in _OF_LOAD else name


def words_for(load: Load, names: Sequence[str]) -> str:
    """Describes the load by these dimensions: ``http-infer, concurrency 8``."""
    of_load = dimensions(load)
    pairs = [(name, of_load.get(name)) for name in names]
    return ", ".join(
        number(value) if name in _WITHOUT_LABEL else f"{word(name)} {number(value)}"
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
    load: Load
    repeats: tuple[Measurement, ...]

    def values(self, metric: Metric) -> list[float]:
        """The figures of the repeats that have answers."""
        found = (metric.value(each) for each in self.repeats if each.num_requests)
        return [value for value in found if value is not None]

    def middle(self, metric: Metric) -> float | None:
        """The median over the repeats; None where no repeat has the figure."""
        values = self.values(metric)
        return statistics.median(values) if values else None

    @property
    def num_errors(self) -> int:
        return sum(each.num_errors for each in self.repeats)

    def remarks(self) -> list[str]:
        asked = self.num_errors + sum(each.num_requests for each in self.repeats)
        said = [f"{self.num_errors:,} of {asked:,} requests failed"] if self.num_errors else []
        unstable = sum(not each.stable for each in self.repeats)
        of = f" {unstable} of {len(self.repeats)} times" if len(self.repeats) > 1 else ""
        said += [f"unstable{of}"] if unstable else []
        return said + list(dict.fromkeys(doubt for each in self.repeats for doubt in each.doubts))


def points(measurements: Iterable[Measurement]) -> list[Point]:
    by_load = grouped(measurements, lambda each: frozenset(dimensions(each.load).items()))
    return [Point(repeats[0].load, tuple(repeats)) for repeats in by_load.values()]


def varying(loads: Sequence[Load]) -> list[str]:
    """The dimensions in which loads differ; a setting that only some loads have counts as one."""
    of_each = [dimensions(load) for load in loads]
    names = dict.fromkeys(name for each in of_each for name in each)
    return [name for name in names if len({each.get(name) for each in of_each}) > 1]


def grouped(found: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    groups: dict[Key, list[Item]] = {}
    for item in found:
        groups.setdefault(key(item), []).append(item)
    return groups


def number(value: Value) -> str:
    """Formats a number without trailing zeros, None as an empty text, anything else by ``str``."""
    if value is None:
        return ""
    return f"{value:g}" if isinstance(value, float) else str(value)
