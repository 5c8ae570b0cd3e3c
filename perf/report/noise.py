"""Tells whether two sets of repeats differ by more than they scatter, by Welch's t test on
logarithms: a ratio of times is a difference of logarithms. A ratio whose 95 % interval holds 1 is
noise; several are put together as their geometric mean. Sources: B. L. Welch, Biometrika 34 (1947)
28-35; T. Kalibera and R. Jones, Rigorous Benchmarking in Reasonable Time, ISMM 2013. Repeats of one
run share a server and an hour: two runs may differ by more than their repeats say.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Difference:
    """The logarithm of B/A, its standard error and degrees of freedom (0: can't be judged)."""

    log_ratio: float
    standard_error: float
    freedom: float

    @property
    def ratio(self) -> float:
        return math.exp(self.log_ratio)

    @property
    def is_judged(self) -> bool:
        return self.freedom > 0

    def interval(self, confidence: float = CONFIDENCE) -> tuple[float, float] | None:
        """The ratio's confidence interval, or None where it can't be estimated."""
        if not self.is_judged:
            return None
        reach = t_quantile((1 + confidence) / 2, self.freedom) * self.standard_error
        return math.exp(self.log_ratio - reach), math.exp(self.log_ratio + reach)

    @property
    def is_noise(self) -> bool:
        interval = self.interval()
        return interval is None or interval[0] <= 1 <= interval[1]


def difference(a: Sequence[float], b: Sequence[float]) -> Difference | None:
    """B against A, or None where a set is empty or holds numbers that are not positive."""
    if not a or not b or min(*a, *b) <= 0:
        return None
    logs_a, logs_b = [math.log(x) for x in a], [math.log(x) for x in b]
    log_ratio = statistics.fmean(logs_b) - statistics.fmean(logs_a)
    if min(len(a), len(b)) < 2:
        return Difference(log_ratio, 0.0, 0)
    shares = [(statistics.variance(logs) / len(logs), len(logs) - 1) for logs in (logs_a, logs_b)]
    return Difference(log_ratio, *_combined(shares))


def together(differences: Sequence[Difference]) -> Difference | None:
    """The geometric mean of several ratios; only of those that can be judged, where any can."""
    judged = [each for each in differences if each.is_judged] or list(differences)
    if not judged:
        return None
    count = len(judged)
    log_ratio = statistics.fmean(each.log_ratio for each in judged)
    if not judged[0].is_judged:
        return Difference(log_ratio, 0.0, 0)
    shares = [((each.standard_error / count) ** 2, each.freedom) for each in judged]
    return Difference(log_ratio, *_combined(shares))


def _combined(shares: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Standard error and degrees of freedom of a sum (Welch and Satterthwaite)."""
    total = sum(variance for variance, _ in shares)
    below = sum(variance**2 / freedom for variance, freedom in shares)
    freedom = total**2 / below if below > 0 else sum(freedom for _, freedom in shares)
    return math.sqrt(total), max(1.0, math.floor(freedom))


def t_tail(t: float, freedom: float) -> float:
    """P(T > t) of Student's t with whole degrees of freedom: Abramowitz and Stegun, 26.7.3-4."""
    count = int(freedom)
    theta = math.atan(t / math.sqrt(count))
    cosine, is_odd = math.cos(theta), count % 2
    term = total = cosine if is_odd else 1.0
    for at in range(3 if is_odd else 2, count - 1, 2):
        term *= cosine**2 * (at - 1) / at
        total += term
    between = math.sin(theta) * (total if count > 1 else 0.0)
    if is_odd:
        between = 2 / math.pi * (theta + between)
    return max(0.0, (1 - between) / 2)


def t_quantile(level: float, freedom: float) -> float:
    """The quantile t with P(T <= t) = ``level``, for levels above one half."""
    low, high = 0.0, 1.0
    while t_tail(high, freedom) > 1 - level:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if t_tail(middle, freedom) > 1 - level else (low, middle)
    return high
