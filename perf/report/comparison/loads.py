"""Two runs, load by load: ratios, what of them is noise, and whether the second is too slow.

Knows points and noise; prints nothing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from generator.errors import PerfError
from perf.report.comparison.noise import Difference, difference, rejected, together
from perf.report.metrics import (
    BETWEEN_TOKENS,
    FIRST_TOKEN,
    LATENCY,
    TOKENS,
    Metric,
    throughput_of,
)
from perf.report.points import Key, Point, dimensions, points, told
from perf.report.results import Results
from perf.report.schema import Load, Run, Value

_RARE = ("load_average",)  # of the hardware, what differs every time
Identity = frozenset[tuple[Key, Value]]


@dataclass(frozen=True)
class Compared:
    """One figure of one load in both runs, as geometric means of the repeats; or of all loads."""

    metric: Metric
    difference: Difference
    a: float | None = None
    b: float | None = None

    @property
    def slowdown(self) -> Difference:
        """How much slower B is: more than 1 is worse, for rates and times alike."""
        return self.difference if self.metric.lower_is_better else self.difference.inverse()

    @property
    def verdict(self) -> str:
        """``better``, ``worse``, ``noise``, or empty where there is no telling."""
        if not self.difference.is_judged:
            return ""
        if self.difference.is_noise:
            return "noise"
        return "worse" if self.slowdown.log_ratio > 0 else "better"


@dataclass(frozen=True)
class Pair:
    """A load that both runs measured."""

    a: Point
    b: Point
    compared: tuple[Compared, ...]

    @property
    def fails_anew(self) -> bool:
        """Whether requests failed in B, and none did in A."""
        return self.b.num_errors > 0 and not self.a.num_errors


@dataclass(frozen=True)
class Comparison:
    """A against B."""

    a: Results
    b: Results
    metrics: tuple[Metric, ...]
    pairs: tuple[Pair, ...]
    overall: tuple[Compared, ...]  # of all loads together
    only_a: tuple[Point, ...]
    only_b: tuple[Point, ...]
    differing: tuple[str, ...]

    @property
    def is_judged(self) -> bool:
        """Whether any figure has repeats on both sides."""
        return any(each.difference.is_judged for pair in self.pairs for each in pair.compared)


@dataclass(frozen=True)
class Failure:
    """A figure of B that is worse than noise and the bound explain; of no load: of all together."""

    pair: Pair | None
    compared: Compared


def compare(a: Results, b: Results, ignored: Sequence[str] = ()) -> Comparison:
    """Matches loads that are equal but for the ``ignored`` dimensions.

    Raises PerfError where nothing can be matched.
    """
    of_a, of_b = _by_identity(a, ignored, "A"), _by_identity(b, ignored, "B")
    measurements = [*a.measurements, *b.measurements]
    metrics = _metrics(throughput_of(measurements))
    pairs = tuple(
        Pair(point, of_b[key], tuple(_compared(point, of_b[key], metrics)))
        for key, point in of_a.items()
        if key in of_b
    )
    if not pairs:
        raise PerfError(_nothing_matches(list(of_a.values()), list(of_b.values())))
    had = tuple(m for m in metrics if any(m == each.metric for p in pairs for each in p.compared))
    return Comparison(
        a,
        b,
        had,
        pairs,
        tuple(_overall(pairs, had)),
        tuple(point for key, point in of_a.items() if key not in of_b),
        tuple(point for key, point in of_b.items() if key not in of_a),
        tuple(_differing(a.run, b.run)),
    )


def failures(comparison: Comparison, bound: float) -> list[Failure]:
    """Where B is slower than noise and ``bound`` (0.05: times 1.05 times as long, rates as much
    lower) explain: by one-sided tests of every load and of all loads together, held to 5 % for all
    tests at once.
    """
    tests = [Failure(None, each) for each in comparison.overall]
    tests += [Failure(pair, each) for pair in comparison.pairs for each in pair.compared]
    tests = [test for test in tests if test.compared.difference.is_judged]
    chances = [test.compared.slowdown.chance_of_more_than(1 + bound) for test in tests]
    return [test for test, stands in zip(tests, rejected(chances), strict=True) if stands]


def load_words(load: Load) -> str:
    quiet: Mapping[Key, Value] = {("load", "batch_size"): 1}
    return ", ".join(
        told(key, value)
        for key, value in dimensions(load).items()
        if value not in (None, "") and quiet.get(key) != value
    )


def _metrics(throughput: Metric) -> tuple[Metric, ...]:
    kinds = (LATENCY, FIRST_TOKEN, BETWEEN_TOKENS)
    return throughput, TOKENS, *(kind[which] for kind in kinds for which in ("p50", "p99"))


def _by_identity(results: Results, ignored: Sequence[str], name: str) -> dict[Identity, Point]:
    found: dict[Identity, Point] = {}
    for point in points(results.measurements):
        of_load = dimensions(point.load).items()
        key = frozenset((key, value) for key, value in of_load if key[1] not in ignored)
        if key in found:
            words = f"{load_words(found[key].load)!r} and {load_words(point.load)!r}"
            raise PerfError(f"--ignore {','.join(ignored)} makes loads of {name} equal: {words}")
        found[key] = point
    if not found:
        raise PerfError(f"{name} has no measurements")
    return found


def _compared(a: Point, b: Point, metrics: Sequence[Metric]) -> Iterator[Compared]:
    for metric in metrics:
        of_a, of_b = _values(a, metric), _values(b, metric)
        found = difference(of_a, of_b)
        if found:
            yield Compared(metric, found, _geometric_mean(of_a), _geometric_mean(of_b))


def _values(point: Point, metric: Metric) -> list[float]:
    """The values of the repeats that answered anything."""
    values = (metric.value(each) for each in point.repeats if each.num_requests)
    return [value for value in values if value is not None]


def _geometric_mean(values: Sequence[float]) -> float:
    return math.exp(math.fsum(map(math.log, values)) / len(values))


def _overall(pairs: Sequence[Pair], metrics: Sequence[Metric]) -> Iterator[Compared]:
    for metric in metrics:
        of_each = [x.difference for pair in pairs for x in pair.compared if x.metric == metric]
        found = together(of_each)
        if found and len(of_each) > 1:
            yield Compared(metric, found)


def _differing(a: Run, b: Run) -> Iterator[str]:
    """A line for whatever was not the same when the two were measured."""
    pairs = [(name, getattr(a, name), getattr(b, name)) for name in ("kind", "commit")]
    for place in ("hardware", "versions", "scenario"):
        of_a, of_b = getattr(a, place), getattr(b, place)
        names = [name for name in dict.fromkeys((*of_a, *of_b)) if name not in _RARE]
        pairs += [(f"{place}: {name}", of_a.get(name), of_b.get(name)) for name in names]
    for name, one, other in pairs:
        if one != other:
            yield f"{name}: {_short(one)} in A, {_short(other)} in B"


def _short(value: object) -> str:
    if value is None:
        return "nothing"
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= 120 else text[:117] + "..."


def _nothing_matches(of_a: Sequence[Point], of_b: Sequence[Point]) -> str:
    return (
        "no load is in both runs; A's first is "
        f"{load_words(of_a[0].load)!r}, B's first is {load_words(of_b[0].load)!r}. "
        "--ignore target,endpoint or another name matches loads that differ in it"
    )
