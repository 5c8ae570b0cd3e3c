"""The metrics of a pipeline and their Prometheus names. Plain numbers, each written by one thread
at a time and read by any.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from hf_triton.runtime.metrics.histogram import SECONDS, Histogram, histogram_families
from hf_triton.runtime.metrics.publishing import Family, Sample, one_number

_FINISH_REASONS = {"ok": "stop", "refused": "refused", "cancelled": "cancelled", "error": "error"}
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class PipelineMetrics:
    """Totals since the load. ``outcomes`` also counts requests "turned away" by a full queue."""

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()
        self.batch_size = Histogram(_SIZES)
        self.queue_time_s = Histogram(SECONDS)
        self.step_s = Histogram(SECONDS)


def families(metrics: PipelineMetrics, *, running: int, waiting: int) -> Iterator[Family]:
    yield one_number("hf_triton_running", "Requests that the pipeline computes", running)
    yield one_number("hf_triton_waiting", "Requests that wait to be started", waiting)
    help_text = "Requests refused because the queue was full or the engine could not take them"
    num_refused = metrics.outcomes["turned away"]
    yield one_number("hf_triton_refused_total", help_text, num_refused, counter=True)
    samples = [
        Sample({"finish_reason": word}, float(metrics.outcomes[outcome]))
        for outcome, word in _FINISH_REASONS.items()
    ]
    yield Family("hf_triton_finished_total", "Requests that ended", True, tuple(samples))
    for name, help_text, histogram in (
        ("batch_size", "Inputs that the pipeline was called with", metrics.batch_size),
        ("queue_time_seconds", "Time from a request's arrival to its step", metrics.queue_time_s),
        ("step_seconds", "Time that a call of the pipeline took", metrics.step_s),
    ):
        yield from histogram_families(f"hf_triton_{name}", help_text, {(): histogram})
