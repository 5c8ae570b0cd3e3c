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

    name: str
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
        return f"{self.label} ({self.unit})" if self.unit else self.label


def _throughput(measurement: Measurement) -> float | None:
    if not measurement.num_requests and not measurement.num_errors:
        return None  # rows or steps, not requests
    return measurement.requests_per_s * measurement.load.batch_size


def _times(times: str, short: str, label: str) -> dict[str, Metric]:
    """Mean and percentiles of one kind of latency."""

    def figure(which: str) -> Figure:
        return lambda measurement: getattr(getattr(measurement, times), f"{which}_ms", None)

    return {
        which: Metric(f"{short}_{which}_ms", f"{label} {which}", "ms", figure(which), True)
        for which in ("mean", "p50", "p90", "p95", "p99")
    }


THROUGHPUT = Metric("throughput_per_s", "throughput", "requests/s", _throughput, False)
THROUGHPUT_OF_ROWS = Metric("throughput_per_s", "throughput", "inputs/s", _throughput, False)
TOKENS = Metric(
    "output_tokens_per_s", "output tokens", "tokens/s", lambda m: m.output_tokens_per_s, False
)
ROOFLINE = Metric("roofline_share", "of the roofline", "%", lambda m: m.roofline_share, False, 100)
LATENCY = _times("latency", "latency", "latency")
FIRST_TOKEN = _times("time_to_first_token", "ttft", "first token")
BETWEEN_TOKENS = _times("inter_token_latency", "itl", "between tokens")
_TIMES = (LATENCY, FIRST_TOKEN, BETWEEN_TOKENS)
# Figures of a server or a machine that need a label, unit and scale of their own.
_KNOWN = {
    "queue_share": ("time in queue", "%", 100),
    "batch_occupancy": ("batch occupancy", "rows", 1),
    "kv_cache_share": ("KV cache used", "%", 100),
    "queue_ms": ("in queue", "ms", 1),
    "compute_ms": ("computing", "ms", 1),
    "cpu_share": ("CPU", "% of all cores", 100),
    "server_cpu_cores": ("server's CPU", "cores", 1),
}
_UNITS = {"gb_per_s": "GB/s", "gflop_per_s": "GFLOP/s", "ms": "ms", "gib": "GiB", "w": "W"}


def listed(place: str, name: str) -> Metric:
    """A figure of ``Measurement.server`` or ``.machine`` (``place``), also if it is not in the
    table.
    """
    base = name.removesuffix("_max")
    label, unit, scale = _KNOWN.get(base) or _guessed(base)
    peak = ", peak" if base != name else ""
    return Metric(
        f"{place}.{name}", label + peak, unit, lambda m: getattr(m, place).get(name), scale=scale
    )


def _guessed(name: str) -> tuple[str, str, float]:
    """The unit that the name's ending implies."""
    if name.endswith("_share"):
        return name.removesuffix("_share").replace("_", " "), "%", 100
    unit = next((unit for unit in _UNITS if name.endswith(f"_{unit}")), "")
    return name.removesuffix(f"_{unit}").replace("_", " "), _UNITS.get(unit, ""), 1


def main_metrics(measurements: Iterable[Measurement]) -> list[Metric]:
    """The few metrics to decide by, for a text table."""
    times = [kind[which] for kind in _TIMES for which in ("p50", "p99")]
    server = [listed("server", name) for name in ("batch_occupancy", "queue_share")]
    machine = [listed("machine", name) for name in ("cpu_share", "gpu_share", "memory_gib")]
    return [throughput_of(measurements), TOKENS, ROOFLINE, *times, *server, *machine]


def every_metric(measurements: Iterable[Measurement]) -> list[Metric]:
    """All metrics that any of the measurements has."""
    found = list(measurements)
    names = dict.fromkeys(("server", name) for each in found for name in each.server)
    names |= dict.fromkeys(("machine", name) for each in found for name in each.machine)
    times = [metric for kind in _TIMES for metric in kind.values()]
    return [throughput_of(found), TOKENS, ROOFLINE, *times, *(listed(*key) for key in names)]


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
