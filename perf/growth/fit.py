"""How fast a curve grows: the exponent p in t ~ n^p and its error.

A line is fitted by least squares through the logarithms of three neighbouring points, at each place
of the curve: a cost that is constant at first and grows later is judged by where it grows. Told is
the steepest place, where that is worse than linear and not by noise; else the curve's end. Knows
only numbers.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

LINEAR_UP_TO = 1.1  # of the exponent: above that, and not by noise, is worse than linear
FLAT_UP_TO = 0.1
WINDOW = 3  # points
NUM_ERRORS = 2  # standard errors that are taken for noise


@dataclass(frozen=True)
class Growth:
    """A curve between two of its points: the exponent and its standard error there, and what each
    more of n costs there, in its unit.
    """

    exponent: float
    error: float
    first: int
    last: int
    per_unit: float

    @property
    def at_least(self) -> float:
        """The exponent, but for noise."""
        return self.exponent - NUM_ERRORS * self.error

    @property
    def verdict(self) -> str:
        """``flat``, ``less than linear``, ``linear`` or ``worse than linear``; or that noise,
        or two points that were measured once, don't tell.
        """
        if not math.isfinite(self.error):
            return "not to be told from two single points"
        if self.at_least > LINEAR_UP_TO:
            return "worse than linear"
        if self.exponent > LINEAR_UP_TO:
            return "not worse than linear beyond noise"
        if self.exponent <= FLAT_UP_TO:
            return "flat"
        return "linear" if self.exponent >= 2 - LINEAR_UP_TO else "less than linear"

    @property
    def is_worse(self) -> bool:
        """Whether it has to be explained."""
        return self.verdict == "worse than linear"

    def text(self) -> str:
        """As in ``grows like n^1.02 (± 0.03) from 256 to 1,000: linear``."""
        error = f" (± {self.error:.2f})" if math.isfinite(self.error) else ""
        told = f"n^{self.exponent:.2f}{error} from {self.first:,} to {self.last:,}"
        if self.verdict == "flat":
            return f"does not grow: {told}"
        return f"grows like {told}: {self.verdict}"


def growth(curve: Mapping[int, Sequence[float]]) -> Growth | None:
    """Of the values of each repeat at each point; None where fewer than two points are above 0."""
    points = {n: [v for v in values if v > 0] for n, values in sorted(curve.items())}
    points = {n: values for n, values in points.items() if values}
    ns = list(points)
    if len(ns) < 2:
        return None
    width = min(WINDOW, len(ns))
    windows = [ns[i : i + width] for i in range(len(ns) - width + 1)]
    found = [_growth({n: points[n] for n in window}) for window in windows]
    steepest = max(found, key=lambda growth: growth.at_least)
    return steepest if steepest.at_least > LINEAR_UP_TO else found[-1]


def _growth(points: Mapping[int, Sequence[float]]) -> Growth:
    """Least squares through the medians. The error is the larger one of two: by how far the points
    lie from the line, and by how far repeats of a point lie apart.
    """
    ns = list(points)
    x = [math.log(n) for n in ns]
    middle = [statistics.median(points[n]) for n in ns]
    y = [math.log(each) for each in middle]
    line = statistics.linear_regression(x, y)
    mean_x = statistics.fmean(x)
    away = [each - mean_x for each in x]
    squares = sum(each**2 for each in away)
    rest = [b - line.intercept - line.slope * a for a, b in zip(x, y, strict=True)]
    from_line = math.sqrt(sum(each**2 for each in rest) / squares / max(1, len(ns) - 2))
    if len(ns) < WINDOW and any(len(values) < 2 for values in points.values()):
        from_line = math.inf  # nothing tells how far two points lie from any line
    spread = [_error_of_log(points[n]) for n in ns]
    from_repeats = math.hypot(*(a * s / squares for a, s in zip(away, spread, strict=True)))
    per_unit = (middle[-1] - middle[0]) / (ns[-1] - ns[0])
    return Growth(line.slope, max(from_line, from_repeats), ns[0], ns[-1], per_unit)


def _error_of_log(values: Sequence[float]) -> float:
    """Of the middle of repeats, as a share of it; 0 where there is only one."""
    if len(values) < 2:
        return 0.0
    return statistics.stdev(map(math.log, values)) / math.sqrt(len(values))
