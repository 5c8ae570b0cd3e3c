"""The counts of engines that answer once, and their names for Prometheus. Plain numbers, each
written by one thread at a time and read by any.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from .publishing import SECONDS, Family, Histogram, Sample, histogram_families, one_number

TURNED_AWAY = "turned away"  # an outcome: not admitted
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_TOKENS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


class WorkMetrics:
    """Totals since the load."""

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()
        self.batch_size = Histogram(_SIZES)
        self.step_s = Histogram(SECONDS)
        self.queue_s = Histogram(SECONDS)
        self.num_tokens = 0  # these two of encoders
        self.batch_tokens = Histogram(_TOKENS)


def encoder_families(metrics: WorkMetrics, num_open: int) -> Iterator[Family]:
    outcomes = metrics.outcomes
    yield one_number("hf_triton_open_requests", "Requests that are computed or wait", num_open)
    yield one_number(
        "hf_triton_input_tokens_total", "Tokens computed", metrics.num_tokens, counter=True
    )
    counts = {word: outcomes[word] for word in ("ok", "refused", "cancelled", "error")}
    counts["refused"] += outcomes[TURNED_AWAY]
    yield _ended("hf_triton_requests_total", "Answered requests", "outcome", counts)
    for name, help_text, histogram in (
        ("step_inputs", "Inputs computed together", metrics.batch_size),
        ("step_tokens", "Tokens computed together", metrics.batch_tokens),
        ("step_seconds", "Duration of a step", metrics.step_s),
        ("engine_queue_seconds", "Time from tokenisation to the first step", metrics.queue_s),
    ):
        yield from histogram_families(f"hf_triton_{name}", help_text, {(): histogram})


def pipeline_families(metrics: WorkMetrics, *, running: int, waiting: int) -> Iterator[Family]:
    outcomes = metrics.outcomes
    yield one_number("hf_triton_running", "Requests that the pipeline computes", running)
    yield one_number("hf_triton_waiting", "Requests that wait to be started", waiting)
    help_text = "Requests refused because the queue was full or the engine could not take them"
    num_refused = outcomes[TURNED_AWAY]
    yield one_number("hf_triton_refused_total", help_text, num_refused, counter=True)
    counts = {word: outcomes[word] for word in ("refused", "cancelled", "error")}
    counts = {"stop": outcomes["ok"], **counts}
    yield _ended("hf_triton_finished_total", "Requests that ended", "finish_reason", counts)
    for name, help_text, histogram in (
        ("batch_size", "Inputs that the pipeline was called with", metrics.batch_size),
        ("queue_time_seconds", "Time from a request's arrival to its step", metrics.queue_s),
        ("step_seconds", "Time that a call of the pipeline took", metrics.step_s),
    ):
        yield from histogram_families(f"hf_triton_{name}", help_text, {(): histogram})


def _ended(name: str, help_text: str, label: str, counts: Mapping[str, int]) -> Family:
    samples = [Sample({label: word}, float(count)) for word, count in counts.items()]
    return Family(name, help_text, True, tuple(samples))
