"""The metrics of a pipeline and their Prometheus names. Plain numbers, each written by one thread
at a time and read by any.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from hf_triton.runtime.metrics.histogram import SECONDS, Histogram, histogram_families
from hf_triton.runtime.metrics.publishing import Family, Sample, one_number

FINISH_REASONS = ("stop", "refused", "cancelled", "error")
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class PipelineMetrics:
    """Totals since the load. ``num_refused`` counts requests that found the queue full."""

    def __init__(self) -> None:
        self.num_refused = 0
        self.finish_reasons: Counter[str] = Counter()
        self.batch_size = Histogram(_SIZES)
        self.queue_time_s = Histogram(SECONDS)
        self.step_s = Histogram(SECONDS)

    def ended(self, outcome: str) -> None:
        """Counts a request's outcome: ok, refused, cancelled or error."""
        self.finish_reasons["stop" if outcome == "ok" else outcome] += 1

    def turned_away(self) -> None:
        """Counts a request that found the queue full."""
        self.num_refused += 1


def families(metrics: PipelineMetrics, *, running: int, waiting: int) -> Iterator[Family]:
    """All metrics as Prometheus families: seconds and totals."""
    yield one_number("hf_triton_running", "Requests that the pipeline computes", running)
    yield one_number("hf_triton_waiting", "Requests that wait to be started", waiting)
    help_text = "Requests refused because the queue was full or the engine could not take them"
    yield one_number("hf_triton_refused_total", help_text, metrics.num_refused, counter=True)
    reasons = metrics.finish_reasons
    samples = [Sample({"finish_reason": word}, float(reasons[word])) for word in FINISH_REASONS]
    help_text = "Requests that ended"
    yield Family("hf_triton_finished_total", help_text, True, tuple(samples))
    for name, help_text, histogram in (
        ("batch_size", "Inputs that the pipeline was called with", metrics.batch_size),
        ("queue_time_seconds", "Time from a request's arrival to its step", metrics.queue_time_s),
        ("step_seconds", "Time that a call of the pipeline took", metrics.step_s),
    ):
        yield from histogram_families(f"hf_triton_{name}", help_text, {(): histogram})
