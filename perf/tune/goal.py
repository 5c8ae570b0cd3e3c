"""The objective and the bounds of a search: scores measurements. Knows no settings and no
server.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from perf.report.schema import Measurement

_FAILED_EXCESS = 100.0  # excess of a trial without figures, as a multiple of the bound
_WORST = 1e9  # a loss above any latency or throughput


@dataclass(frozen=True)
class Goal:
    """The highest throughput, or the lowest p99 latency, among settings that meet every bound."""

    wanted: Literal["throughput", "latency"]
    max_p99_ms: float | None = None  # of a request, from sending it to its whole answer
    max_ttft_ms: float | None = None  # p99 of the time to the first token of a stream
    min_throughput: float | None = None  # as throughput() counts

    def value(self, measurement: Measurement) -> float:
        """The number to maximise or minimise; NaN where it was not measured."""
        if self.wanted == "throughput":
            return throughput(measurement)
        return measurement.latency.p99_ms if measurement.latency else math.nan

    def excess(self, measurement: Measurement) -> dict[str, float]:
        """For each bound that is broken: how far the measurement exceeds it, as a share of it.
        Failed or refused requests are a bound of their own, at zero.
        """
        sent = measurement.num_requests + measurement.num_errors
        found = {"errors": measurement.num_errors / sent if sent else _FAILED_EXCESS}
        for name, bound, times in (
            ("p99", self.max_p99_ms, measurement.latency),
            ("TTFT", self.max_ttft_ms, measurement.time_to_first_token),
        ):
            if bound is not None:
                found[name] = times.p99_ms / bound - 1 if times else _FAILED_EXCESS
        if self.min_throughput is not None:
            found["throughput"] = 1 - throughput(measurement) / self.min_throughput
        return {name: by for name, by in found.items() if by > 0}

    def is_met(self, measurement: Measurement) -> bool:
        """Whether every bound is met."""
        return not self.excess(measurement)

    def loss(self, measurement: Measurement) -> float:
        """The number that the search minimises: any broken bound is worse than every setting that
        meets all bounds.
        """
        beyond, value = sum(self.excess(measurement).values()), self.value(measurement)
        if beyond or math.isnan(value):
            return _WORST * (1 + beyond)
        return value if self.wanted == "latency" else -value

    def describe(self) -> str:
        """Describes the goal, such as ``highest throughput with p99 at most 500 ms``."""
        bounds = [
            text.format(bound)
            for text, bound in (
                ("p99 at most {:g} ms", self.max_p99_ms),
                ("time to first token (p99) at most {:g} ms", self.max_ttft_ms),
                ("throughput at least {:g}/s", self.min_throughput),
            )
            if bound is not None
        ]
        wanted = "highest throughput" if self.wanted == "throughput" else "lowest p99 latency"
        return f"{wanted} with {' and '.join(bounds)}" if bounds else wanted


def throughput(measurement: Measurement) -> float:
    """Output tokens per second where answers are text, else requests per second."""
    tokens = measurement.output_tokens_per_s
    return measurement.requests_per_s if tokens is None else tokens
