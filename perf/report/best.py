"""What was best, in words. Knows points and metrics; nothing of pages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from perf.report.metrics import FIRST_TOKEN, LATENCY, TOKENS, Metric, shown, throughput_of
from perf.report.plots.panels import COMPARES_TARGETS
from perf.report.points import TARGET, WORK, Point, grouped, values_at, varying, words_for
from perf.report.tables import load_words

_NEAR = 2.0  # times the lowest p99: what a caller hardly notices, where no bound was given


@dataclass(frozen=True)
class Bounds:
    """What a user would put up with, in milliseconds; None where that was not said."""

    p99_ms: float | None = None
    ttft_p99_ms: float | None = None

    def words(self) -> str:
        """Such as ``p99 of at most 200 ms``."""
        named = (("latency p99", self.p99_ms), ("first token p99", self.ttft_p99_ms))
        return " and ".join(f"{name} of at most {shown(ms)} ms" for name, ms in named if ms)

    def hold(self, point: Point) -> bool:
        """Whether a point is known to keep to them."""
        pairs = ((LATENCY["p99"], self.p99_ms), (FIRST_TOKEN["p99"], self.ttft_p99_ms))
        return all(
            ms is None or ((value := point.middle(metric)) is not None and value <= ms)
            for metric, ms in pairs
        )


@dataclass(frozen=True)
class Winner:
    """One sentence: of what, how much, at which load, and at what price."""

    title: str
    figure: str
    load: str = ""
    beside: str = ""
    doubt: str = ""


@dataclass(frozen=True)
class Best:
    """The winners among loads that do the same work."""

    work: str
    winners: tuple[Winner, ...]


def best(kind: str, points: Sequence[Point], bounds: Bounds) -> list[Best]:
    """For each target and kind of work, or for each kind of work where targets are compared."""
    keys = list(WORK) if kind in COMPARES_TARGETS else [TARGET, *WORK]
    differing = [key for key in varying([p.load for p in points]) if key in keys]
    groups = grouped(points, lambda point: values_at(point.load, differing))
    return [
        Best(words_for(differing, values), tuple(filter(None, _winners(part, bounds))))
        for values, part in groups.items()
    ]


def _winners(points: Sequence[Point], bounds: Bounds) -> Iterator[Winner | None]:
    sound = [
        point
        for point in points
        if not point.num_errors and any(each.num_requests for each in point.repeats)
    ]
    if not sound:
        yield Winner("No load was answered without errors", "")
        return
    rate = throughput_of(each for point in points for each in point.repeats)
    if len(points) == 1:
        yield _most("Its one load", sound, rate)
        return
    yield _most("Highest throughput", sound, rate, points)
    yield _most_within(sound, rate, bounds, points)
    yield _least("Lowest latency", sound, LATENCY, points)
    yield _least("Lowest time to first token", sound, FIRST_TOKEN, points)
    yield _most("Most output tokens", sound, TOKENS, points)


def _most(
    title: str, sound: Sequence[Point], metric: Metric, points: Sequence[Point] = ()
) -> Winner | None:
    """``points``, where given, are all that its load has to be told from."""
    had = [point for point in sound if point.middle(metric) is not None]
    point = max(had, key=lambda each: each.middle(metric) or 0.0, default=None)
    if point is None:
        return None
    words = load_words(point, points) if points else ""
    figure = f"{shown(point.middle(metric))} {metric.unit}"
    return Winner(title, figure, words, _price(point), _doubt(point))


def _most_within(
    sound: Sequence[Point], metric: Metric, bounds: Bounds, points: Sequence[Point]
) -> Winner | None:
    """The highest throughput among the points that keep to the bounds."""
    said = bounds.words()
    if not said:
        lowest = min((v for p in sound if (v := p.middle(LATENCY["p99"]))), default=None)
        if lowest is None:
            return None
        bounds = Bounds(p99_ms=lowest * _NEAR)
        said = f"latency p99 of at most twice the lowest ({shown(lowest * _NEAR)} ms)"
    title = f"Highest throughput with a {said}"
    kept = [point for point in sound if bounds.hold(point)]
    return _most(title, kept, metric, points) if kept else Winner(title, "none of the loads")


def _least(
    title: str, sound: Sequence[Point], times: dict[str, Metric], points: Sequence[Point]
) -> Winner | None:
    """By the p99: what nearly every caller gets."""
    had = [point for point in sound if point.middle(times["p99"]) is not None]
    point = min(had, key=lambda each: each.middle(times["p99"]) or 0.0, default=None)
    if point is None:
        return None
    median = point.middle(times["p50"])
    figure = f"p99 {shown(point.middle(times['p99']))} ms"
    figure += f", median {shown(median)} ms" if median else ""
    throughput = throughput_of(point.repeats)
    rate = f"{shown(point.middle(throughput))} {throughput.unit}"
    return Winner(title, figure, load_words(point, points), rate, _doubt(point))


def _price(point: Point) -> str:
    """The latency that comes with a throughput."""
    pairs = ((LATENCY["p99"], "latency p99"), (FIRST_TOKEN["p99"], "first token p99"))
    values = ((point.middle(metric), name) for metric, name in pairs)
    return ", ".join(f"{name} {shown(value)} ms" for value, name in values if value is not None)


def _doubt(point: Point) -> str:
    return "; ".join([*(() if point.is_stable else ("not stable",)), *point.doubts])
