"""What the figures of costs are called, and how their values are shown."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """``unit`` is s, MiB or cores."""

    words: str
    unit: str

    def text(self, value: float) -> str:
        """In a unit that fits, with three digits."""
        scale, unit = self._scale(value)
        return f"{_three_digits(value * scale)} {unit}"

    def round_text(self, value: float) -> str:
        """Without digits that are 0, for an axis."""
        scale, unit = self._scale(value)
        return f"{float(f'{value * scale:.3g}'):,g} {unit}"

    def _scale(self, value: float) -> tuple[float, str]:
        scales = _SCALES[self.unit]
        found = (each for each in scales if abs(value) >= each[0] * _JUST_BELOW)
        _, scale, unit = next(found, scales[-1])
        return scale, unit


_JUST_BELOW = 0.9995  # what is shown as 1,000 ms is 1 s
_SCALES: dict[str, tuple[tuple[float, float, str], ...]] = {
    "s": ((1.0, 1.0, "s"), (1e-3, 1e3, "ms"), (0.0, 1e6, "µs")),
    "MiB": ((1024.0, 1 / 1024, "GiB"), (1.0, 1.0, "MiB"), (0.0, 1024.0, "KiB")),
    "cores": ((0.0, 1.0, "cores"),),
}
FIGURES = {
    "wall_s": Figure("time", "s"),
    "cpu_s": Figure("processor time", "s"),
    "peak_memory_mib": Figure("peak memory", "MiB"),
    "memory_mib": Figure("memory", "MiB"),
    "server_cpu_s": Figure("the server's processor time", "s"),
    "latency_p50_s": Figure("latency p50", "s"),
    "latency_p99_s": Figure("latency p99", "s"),
    "s_per_request": Figure("time for each request", "s"),
    "server_cpu_s_per_request": Figure("the server's processor time for each request", "s"),
    "prefill_s": Figure("time until the first token", "s"),
    "prefill_cpu_s": Figure("processor time until the first token", "s"),
    "decode_s_per_token": Figure("time for each further token", "s"),
    "startup_s": Figure("time until all are ready", "s"),
    "idle_cores": Figure("busy without requests", "cores"),
}


def _three_digits(value: float) -> str:
    if abs(value) >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 9.995 else f"{value:.2f}"
