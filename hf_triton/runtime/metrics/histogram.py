"""Prometheus histograms made of counters: Triton's Python backend has no histograms before 25.x;
and totals that hide what a single request added. publishing.py publishes them.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from itertools import accumulate

from .publishing import Family, Sample

_draw = random.SystemRandom().random
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


class RoundedTotal:
    """Adds whole multiples of ``step``: each amount is rounded up or down at random, so that the
    total is right on average, and off by about the square root of ``step`` times its true value.

    A fixed rounding would not do: a client who knows how far the total is from its next step sees
    by one request more whether that added a token more.
    """

    def __init__(self, step: int) -> None:
        self.value = 0
        self._step = step

    def add(self, amount: int) -> None:
        self.value += self._step * int(amount / self._step + _draw())
