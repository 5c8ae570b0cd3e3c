"""The figures of a measurement that are shown and compared: name, unit, and which way is better.

Knows the schema; no loads, no tables, no plots.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from perf.report.schema import Measurement

Figure = Callable[[Measurement], float | None]


@dataclass(frozen=True)
class Metric:
    """One figure. ``scale`` turns what is stored into ``unit``."""

    name: str
    label: str
    unit: str
    of: Figure
    lower_is_better: bool | None = None  # None: neither
    scale: float = 1.0
    with_spread: bool = True  # whether tables show the spread of its repeats

    def value(self, measurement: Measurement) -> float | None:
        """In ``unit``; None where it was not measured."""
        found = self.of(measurement)
        return None if found is None else found * self.scale

    def text(self, value: float | None) -> str:
        """With as many digits as mean something; per cent without any from ten on."""
        if value is not None and self.unit.startswith("%"):
            return f"{value:.{0 if value >= 9.95 else 1}f}"
        return shown(value)

    @property
    def heading(self) -> str:
        """Label and unit, as a column or an axis is headed."""
        return f"{self.label} ({self.unit})" if self.unit else self.label


def _throughput(measurement: Measurement) -> float | None:
    if not measurement.num_requests and not measurement.num_errors:
        return None  # something else was measured than requests
    return measurement.requests_per_s * measurement.load.batch_size


def _times(times: str, short: str, label: str) -> dict[str, Metric]:
    """Mean and percentiles of one kind of time."""

    def figure(which: str) -> Figure:
        return lambda measurement: getattr(getattr(measurement, times), f"{which}_ms", None)

    return {
        which: Metric(
            f"{short}_{which}_ms",
            f"{label} {which}",
            "ms",
            figure(which),
            lower_is_better=True,
            with_spread=which in ("p50", "p99"),
        )
        for which in ("mean", "p50", "p90", "p95", "p99")
    }


def _listed(place: str, name: str) -> Figure:
    def of(measurement: Measurement) -> float | None:
        found: Any = getattr(measurement, place).get(name)
        return found if isinstance(found, int | float) and math.isfinite(found) else None

    return of


THROUGHPUT = Metric("throughput_per_s", "throughput", "requests/s", _throughput, False)
THROUGHPUT_OF_ROWS = Metric("throughput_per_s", "throughput", "inputs/s", _throughput, False)
TOKENS = Metric(
    "output_tokens_per_s", "output tokens", "tokens/s", lambda m: m.output_tokens_per_s, False
)
ROOFLINE = Metric("roofline_share", "of the roofline", "%", lambda m: m.roofline_share, False, 100)
LATENCY = _times("latency", "latency", "latency")
FIRST_TOKEN = _times("time_to_first_token", "ttft", "first token")
BETWEEN_TOKENS = _times("inter_token_latency", "itl", "between tokens")
# What is known of figures that a run may have beside the fixed ones: label, unit, scale.
_KNOWN = {
    "queue_share": ("time in queue", "%", 100),
    "batch_occupancy": ("batch occupancy", "rows", 1),
    "kv_cache_share": ("KV cache used", "%", 100),
    "queue_ms": ("in queue", "ms", 1),
    "compute_ms": ("computing", "ms", 1),
    "cpu_share": ("CPU", "% of all cores", 100),
    "server_cpu_cores": ("server's CPU", "cores", 1),
    "memory_gib": ("memory", "GiB", 1),
    "gpu_share": ("GPU", "%", 100),
    "gpu_memory_gib": ("GPU memory", "GiB", 1),
    "gpu_power_w": ("GPU power", "W", 1),
}
_SUFFIXES = {
    "_share": ("%", 100),
    "_gb_per_s": ("GB/s", 1),
    "_gflop_per_s": ("GFLOP/s", 1),
    "_mhz": ("MHz", 1),
    "_ms": ("ms", 1),
    "_s": ("s", 1),
    "_us": ("µs", 1),
    "_gib": ("GiB", 1),
    "_mib": ("MiB", 1),
    "_w": ("W", 1),
    "_cores": ("cores", 1),
    "_bytes": ("bytes", 1),
}


def listed(place: str, name: str) -> Metric:
    """A figure of ``Measurement.server`` or ``.machine``, by ``place``; known or not."""
    peak = name.endswith("_max")
    base = name.removesuffix("_max")
    label, unit, scale = _KNOWN.get(base) or _guessed(base)
    return Metric(
        f"{place}.{name}", f"{label}, peak" if peak else label, unit, _listed(place, name),
        scale=scale, with_spread=False,
    )  # fmt: skip


def _guessed(name: str) -> tuple[str, str, float]:
    """What is shown of a figure that isn't known: the unit that its name ends in."""
    for suffix, (unit, scale) in _SUFFIXES.items():
        if name.endswith(suffix):
            return name.removesuffix(suffix).replace("_", " "), unit, scale
    return name.replace("_", " "), "", 1


def all_listed(measurements: Iterable[Measurement]) -> list[Metric]:
    """The figures of server and machine that any of them has, known ones first."""
    names = {("server", name) for each in measurements for name in each.server}
    names |= {("machine", name) for each in measurements for name in each.machine}
    known = list(_KNOWN)

    def place(key: tuple[str, str]) -> tuple[bool, int, str]:
        base = key[1].removesuffix("_max")
        at = known.index(base) if base in known else len(known)
        return key[0] == "machine", at, key[1]

    return [listed(*key) for key in sorted(names, key=place)]


def throughput_of(measurements: Iterable[Measurement]) -> Metric:
    """By rows where any request had several; else by requests, which is the same."""
    batched = any(each.load.batch_size != 1 for each in measurements)
    return THROUGHPUT_OF_ROWS if batched else THROUGHPUT


def shown(value: float | None) -> str:
    """Three digits, more before the point: 0.123, 1.23, 12.3, 123, 1,234; a count as it is."""
    if value is None:
        return ""
    if isinstance(value, int):
        return f"{value:,}"
    size = abs(value)
    if 0 < size < 0.0005:
        return f"{value:.1e}"
    digits = 0 if size >= 99.95 else 1 if size >= 9.995 else 2 if size >= 0.9995 else 3
    return f"{value:,.{digits}f}" if size else "0"


def plain(value: float) -> str:
    """A round number, as on an axis, without digits that say nothing: 0.5, 20, 1,500, 2.5M."""
    if abs(value) >= 1e6:
        return f"{value / 1e6:,.4g}M"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
