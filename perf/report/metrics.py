"""The figures of a measurement that are shown and compared: name, unit, and which direction is
better. Knows the schema; no loads, no tables, no plots.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from perf.report.schema import Measurement

Figure = Callable[[Measurement], float | None]


@dataclass(frozen=True)
class Metric:
    """One figure. ``scale`` converts the stored value to ``unit``."""

    label: str
    unit: str
    of: Figure
    lower_is_better: bool | None = None  # None: neither
    scale: float = 1.0

    def value(self, measurement: Measurement) -> float | None:
        """The figure in ``unit``; None where it was not measured."""
        found = self.of(measurement)
        return None if found is None else found * self.scale

    @property
    def heading(self) -> str:
        """Label and unit, for a column or an axis."""
        return f"{self.label} ({self.unit})"


def _throughput(measurement: Measurement) -> float:
    return measurement.requests_per_s * measurement.load.batch_size


def _times(times: str, label: str) -> dict[str, Metric]:
    """Percentiles of one kind of latency."""

    def figure(which: str) -> Figure:
        return lambda measurement: getattr(getattr(measurement, times), f"{which}_ms", None)

    return {
        which: Metric(f"{label} {which}", "ms", figure(which), True) for which in ("p50", "p99")
    }


def _of(place: str, name: str, label: str, unit: str, scale: float = 1.0) -> Metric:
    """A figure of ``Measurement.server`` or ``.machine`` (``place``)."""
    return Metric(label, unit, lambda each: getattr(each, place).get(name), scale=scale)


THROUGHPUT = Metric("throughput", "requests/s", _throughput, False)
THROUGHPUT_OF_ROWS = Metric("throughput", "inputs/s", _throughput, False)
TOKENS = Metric("output tokens", "tokens/s", lambda m: m.output_tokens_per_s, False)
LATENCY = _times("latency", "latency")
FIRST_TOKEN = _times("time_to_first_token", "first token")
BETWEEN_TOKENS = _times("inter_token_latency", "between tokens")
# A server's and a machine's use; report.json has more.
USE = (
    _of("server", "batch_occupancy", "batch occupancy", "rows"),
    _of("server", "queue_share", "time in queue", "%", 100),
    _of("server", "kv_pages_share", "KV pages used", "%", 100),
    _of("machine", "cpu_share", "CPU", "% of all cores", 100),
    _of("machine", "server_cpu_cores", "server's CPU", "cores"),
    _of("machine", "memory_gib", "memory", "GiB"),
    _of("machine", "gpu_share", "GPU", "%", 100),
    _of("machine", "gpu_memory_gib", "GPU's memory", "GiB"),
)


def judged_metrics(measurements: Iterable[Measurement]) -> list[Metric]:
    """The metrics of which less or more is better."""
    times = [metric for kind in (LATENCY, FIRST_TOKEN, BETWEEN_TOKENS) for metric in kind.values()]
    return [throughput_of(measurements), TOKENS, *times]


def shown_metrics(measurements: Iterable[Measurement]) -> list[Metric]:
    """The metrics of a table to decide by."""
    return [*judged_metrics(measurements), *USE]


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
