"""Compares two runs load by load: ratios, and which of them are noise, in Markdown.

Two sets of repeats differ if they do by more than they scatter, by Welch's t test on logarithms: a
ratio of times is a difference of logarithms. A ratio whose 95 % interval holds 1 is noise; several
are put together as their geometric mean. Sources: B. L. Welch, Biometrika 34 (1947) 28-35; T.
Kalibera and R. Jones, Rigorous Benchmarking in Reasonable Time, ISMM 2013. Repeats of one run share
a server and an hour: two runs may differ by more than their repeats say.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from generator.errors import PerfError
from perf.report.points import Metric, Point, dimensions, judged_metrics, load_words, points, shown
from perf.report.rendering import escaped, markdown_table
from perf.report.schema import Run

CONFIDENCE = 0.95
_RARE = ("load_average",)  # fields of the hardware that differ in every run
NOT_JUDGED = (
    "One measurement of a load can't tell a difference from noise: measure both with "
    "`repeats: 3` or more in the scenario."
)
RULE = (
    "Figures are geometric means of the repeats, ratios are B/A, and brackets hold the ratio with "
    "95 %: Welch's t test on logarithms. A ratio whose brackets hold 1 is noise. By chance alone "
    "one ratio in twenty looks different, and two runs may differ by more than their repeats do: "
    "measure A twice to see."
)


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


@dataclass(frozen=True)
class Compared:
    """One figure of one load (or of all loads) in both runs, as geometric means of the repeats."""

    metric: Metric
    difference: Difference
    a: float | None = None
    b: float | None = None

    @property
    def slowdown(self) -> Difference:
        """B's slowdown factor: above 1 is worse, for rates and times alike."""
        found = self.difference
        return found if self.metric.lower_is_better else replace(found, log_ratio=-found.log_ratio)

    @property
    def verdict(self) -> str:
        """``better``, ``worse``, ``noise``, or nothing without repeats."""
        if not self.difference.is_judged:
            return ""
        if self.difference.is_noise:
            return "noise"
        return "worse" if self.slowdown.log_ratio > 0 else "better"

    def __str__(self) -> str:
        interval = self.difference.interval()
        if interval is None:
            return f"{self.difference.ratio:.2f}"
        low, high = (f"{x:.3f}" if 0.995 <= x < 1.005 else f"{x:.2f}" for x in interval)
        return f"{self.difference.ratio:.2f} ({low} to {high}) {self.verdict}"


@dataclass(frozen=True)
class Pair:
    words: str
    compared: tuple[Compared, ...]
    starts_to_fail: bool  # requests failed in B but not in A

    @property
    def is_judged(self) -> bool:
        return any(each.difference.is_judged for each in self.compared)


@dataclass(frozen=True)
class Comparison:
    """``warnings`` are conditions that weaken it; ``overall`` are figures of all loads together."""

    a: Run
    b: Run
    pairs: Sequence[Pair]
    overall: Sequence[Compared]
    warnings: Sequence[str]

    @property
    def is_judged(self) -> bool:
        return any(pair.is_judged for pair in self.pairs)


def compare(a: Run, b: Run, ignored: Sequence[str] = ()) -> Comparison:
    """Matches loads that are equal in all but the ``ignored`` dimensions. Raises PerfError."""
    of_a, of_b = _by_identity(a, ignored, "A"), _by_identity(b, ignored, "B")
    metrics = judged_metrics([*a.measurements, *b.measurements])
    pairs = [_pair(of_a[key], of_b[key], metrics) for key in of_a if key in of_b]
    if not pairs:
        firsts = [load_words(next(iter(each.values())).load) for each in (of_a, of_b)]
        raise PerfError(
            f"no load is in both runs; A's first is {firsts[0]!r}, B's first is {firsts[1]!r}. "
            "--ignore target,endpoint or another name matches loads that differ in it"
        )
    warnings = [f"not the same: {line}" for line in _differing(a, b)]
    for name, own, other in (("A", of_a, of_b), ("B", of_b, of_a)):
        only = [load_words(point.load) for key, point in own.items() if key not in other]
        warnings += [f"only in {name}: {words}" for words in only]
    warnings += [f"requests fail in B only: {pair.words}" for pair in pairs if pair.starts_to_fail]
    single = sum(not pair.is_judged for pair in pairs)
    if 0 < single < len(pairs):
        warnings.append(f"without repeats: {single} loads, of which noise can't be judged")
    overall = []
    for metric in metrics:
        of_each = [x.difference for pair in pairs for x in pair.compared if x.metric == metric]
        if len(of_each) > 1 and (of_all := together(of_each)):
            overall.append(Compared(metric, of_all))
    return Comparison(a, b, pairs, overall, warnings)


def failures(found: Comparison, bound: float) -> list[str]:
    """Lines for regressions: B fails, or is slower by more than ``bound`` beyond noise. One-sided
    tests of every load and of all together, held to 5 % for all at once by Bonferroni's rule.
    """
    tests = [("all loads together", each) for each in found.overall]
    tests += [(pair.words, each) for pair in found.pairs for each in pair.compared]
    tests = [(where, each) for where, each in tests if each.difference.is_judged]
    one_sided = 1 - 2 * (1 - CONFIDENCE) / max(1, len(tests))
    slower = [
        f"slower: {where}: {each.metric.label}: {each}"
        for where, each in tests
        if (interval := each.slowdown.interval(one_sided)) and interval[0] > 1 + bound
    ]
    anew = [pair.words for pair in found.pairs if pair.starts_to_fail]
    return slower + [f"fails in B only: {words}" for words in anew]


def to_markdown(found: Comparison) -> str:
    names = (escaped(f"{run.name} ({run.created})") for run in (found.a, found.b))
    lines = ["# A: {}, B: {}".format(*names), ""]
    lines += [f"- {escaped(text)}" for text in found.warnings]
    for each in found.overall:
        text = f"B/A over all {len(found.pairs)} loads: {each.metric.label}: {each}"
        lines.append(f"- {escaped(text)}")
    metrics = list(dict.fromkeys(each.metric for p in found.pairs for each in p.compared))
    rows = []
    for pair in found.pairs:
        of_pair = {x.metric: f"{shown(x.a)} → {shown(x.b)}: {x}" for x in pair.compared}
        rows.append([pair.words, *(of_pair.get(metric, "") for metric in metrics)])
    heads = ["load", *(metric.heading for metric in metrics)]
    lines += ["", *markdown_table(heads, rows, "<" * len(heads))]
    return "\n".join([*lines, "", RULE if found.is_judged else NOT_JUDGED]) + "\n"


def _by_identity(run: Run, ignored: Sequence[str], name: str) -> dict[frozenset[Any], Point]:
    found: dict[frozenset[Any], Point] = {}
    for point in points(run.measurements):
        key = frozenset(item for item in dimensions(point.load).items() if item[0] not in ignored)
        if key in found:
            words = f"{load_words(found[key].load)!r} and {load_words(point.load)!r}"
            raise PerfError(f"--ignore {','.join(ignored)} makes loads of {name} equal: {words}")
        found[key] = point
    if not found:
        raise PerfError(f"{name} has no measurements")
    return found


def _pair(a: Point, b: Point, metrics: Sequence[Metric]) -> Pair:
    compared = []
    for metric in metrics:
        of_a, of_b = a.values(metric), b.values(metric)
        if found := difference(of_a, of_b):
            means = statistics.geometric_mean(of_a), statistics.geometric_mean(of_b)
            compared.append(Compared(metric, found, *means))
    return Pair(load_words(a.load), tuple(compared), bool(b.num_errors and not a.num_errors))


def _differing(a: Run, b: Run) -> Iterator[str]:
    pairs = [(name, getattr(a, name), getattr(b, name)) for name in ("kind", "commit")]
    for place in ("hardware", "versions", "scenario"):
        of_a, of_b = getattr(a, place), getattr(b, place)
        names = [name for name in dict.fromkeys((*of_a, *of_b)) if name not in _RARE]
        pairs += [(f"{place}: {name}", of_a.get(name), of_b.get(name)) for name in names]
    for name, *both in pairs:
        if both[0] != both[1]:
            texts = (x if isinstance(x, str) else json.dumps(x, default=str) for x in both)
            one, other = (text if len(text) <= 120 else text[:117] + "..." for text in texts)
            yield f"{name}: {one} in A, {other} in B"


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
