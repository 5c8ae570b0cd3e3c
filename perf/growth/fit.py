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
class Slope:
    """``exponent`` and its standard error, between two points of a curve."""

    exponent: float
    error: float
    first: int
    last: int

    @property
    def at_least(self) -> float:
        """The exponent, but for noise."""
        return self.exponent - NUM_ERRORS * self.error


@dataclass(frozen=True)
class Growth:
    """A curve at the place that is told, and what each more of n costs there, in its unit."""

    slope: Slope
    per_unit: float

    @property
    def verdict(self) -> str:
        """``flat``, ``less than linear``, ``linear`` or ``worse than linear``; or that noise,
        or two points that were measured once, don't tell.
        """
        if not math.isfinite(self.slope.error):
            return "not to be told from two single points"
        if self.slope.at_least > LINEAR_UP_TO:
            return "worse than linear"
        if self.slope.exponent > LINEAR_UP_TO:
            return "not worse than linear beyond noise"
        if self.slope.exponent <= FLAT_UP_TO:
            return "flat"
        return "linear" if self.slope.exponent >= 2 - LINEAR_UP_TO else "less than linear"

    @property
    def is_worse(self) -> bool:
        """Whether it has to be explained."""
        return self.verdict == "worse than linear"

    def text(self) -> str:
        """As in ``grows like n^1.02 (± 0.03) from 256 to 1,000: linear``."""
        slope = self.slope
        error = f" (± {slope.error:.2f})" if math.isfinite(slope.error) else ""
        places = f"from {slope.first:,} to {slope.last:,}"
        power = f"n^{slope.exponent:.2f}{error}"
        if self.verdict == "flat":
            return f"does not grow: {power} {places}"
        return f"grows like {power} {places}: {self.verdict}"


def growth(curve: Mapping[int, Sequence[float]]) -> Growth | None:
    """Of the values of each repeat at each point; None where fewer than two points are above 0."""
    points = {n: [v for v in values if v > 0] for n, values in sorted(curve.items())}
    points = {n: values for n, values in points.items() if values}
    ns = list(points)
    if len(ns) < 2:
        return None
    width = min(WINDOW, len(ns))
    windows = [ns[i : i + width] for i in range(len(ns) - width + 1)]
    slopes = [_slope({n: points[n] for n in window}) for window in windows]
    steepest = max(slopes, key=lambda slope: slope.at_least)
    told = steepest if steepest.at_least > LINEAR_UP_TO else slopes[-1]
    rise = statistics.median(points[told.last]) - statistics.median(points[told.first])
    return Growth(told, rise / (told.last - told.first))


def _slope(points: Mapping[int, Sequence[float]]) -> Slope:
    """Least squares through the medians. The error is the larger one of two: by how far the points
    lie from the line, and by how far repeats of a point lie apart.
    """
    ns = list(points)
    x = [math.log(n) for n in ns]
    y = [math.log(statistics.median(points[n])) for n in ns]
    mean_x, mean_y = statistics.fmean(x), statistics.fmean(y)
    away = [each - mean_x for each in x]
    squares = sum(each**2 for each in away)
    exponent = sum(a * (b - mean_y) for a, b in zip(away, y, strict=True)) / squares
    rest = [b - mean_y - exponent * a for a, b in zip(away, y, strict=True)]
    from_line = math.sqrt(sum(each**2 for each in rest) / squares / max(1, len(ns) - 2))
    if len(ns) < WINDOW and any(len(values) < 2 for values in points.values()):
        from_line = math.inf  # nothing tells how far two points lie from any line
    spread = [_error_of_log(points[n]) for n in ns]
    pairs = zip(away, spread, strict=True)
    from_repeats = math.sqrt(sum((a * s / squares) ** 2 for a, s in pairs))
    return Slope(exponent, max(from_line, from_repeats), ns[0], ns[-1])


def _error_of_log(values: Sequence[float]) -> float:
    """Of the middle of repeats, as a share of it; 0 where there is only one."""
    if len(values) < 2:
        return 0.0
    return statistics.stdev(map(math.log, values)) / math.sqrt(len(values))
