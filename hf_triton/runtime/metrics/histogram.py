"""Prometheus histograms made of counters: Triton's Python backend has no histograms before 25.x.
publishing.py publishes them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from itertools import accumulate

from .publishing import Family, Sample

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Histogram:
    """The number of observations in each bucket; ``bounds`` are the buckets' upper bounds."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)  # the last one is beyond every bound
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


def histogram_families(
    name: str, help_text: str, histograms: Mapping[tuple[tuple[str, str], ...], Histogram]
) -> Iterator[Family]:
    """The three metric families of a histogram: ``_bucket``, ``_sum`` and ``_count``. The keys of
    ``histograms`` are their labels as sorted (name, value) pairs, () without labels.
    """
    buckets, sums, counts = [], [], []
    for pairs, histogram in histograms.items():
        labels = dict(pairs)
        bounds = [*(f"{bound:g}" for bound in histogram.bounds), "+Inf"]
        below = list(accumulate(histogram.counts))
        buckets += [
            Sample({**labels, "le": bound}, float(n))
            for bound, n in zip(bounds, below, strict=True)
        ]
        sums.append(Sample(labels, histogram.sum))
        counts.append(Sample(labels, float(below[-1])))
    yield Family(f"{name}_bucket", help_text, True, tuple(buckets))
    yield Family(f"{name}_sum", help_text, True, tuple(sums))
    yield Family(f"{name}_count", help_text, True, tuple(counts))
