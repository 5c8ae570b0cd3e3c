"""What was best, in words. Knows points and metrics; nothing of pages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from perf.report.metrics import FIRST_TOKEN, LATENCY, TOKENS, Metric, shown, throughput_of
from perf.report.panels import COMPARES_TARGETS
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
    if kind == "growth":  # each load is other work
        return []
    keys = list(WORK) if kind in COMPARES_TARGETS else [TARGET, *WORK]
    differing = [key for key in varying([p.load for p in points]) if key in keys]
    groups = grouped(points, lambda point: values_at(point.load, differing))
    return [
        Best(
            words_for(differing, values),
            tuple(_winners(part, bounds)),
        )
        for values, part in groups.items()
    ]


def _winners(points: Sequence[Point], bounds: Bounds) -> list[Winner]:
    sound = [point for point in points if not point.num_errors and _answered(point)]
    if not sound:
        return [Winner("No load was answered without errors", "")]
    throughput = throughput_of(each for point in points for each in point.repeats)
    if len(points) == 1:
        alone = _most("Its one load", sound, throughput, lambda _: "")
        return [alone] if alone else []
    words = _words(points)
    found = [_most("Highest throughput", sound, throughput, words)]
    found.append(_most_within(sound, throughput, bounds, words))
    found.append(_least("Lowest latency", sound, LATENCY, words))
    found.append(_least("Lowest time to first token", sound, FIRST_TOKEN, words))
    found.append(_most("Most output tokens", sound, TOKENS, words))
    return [winner for winner in found if winner]


def _words(points: Sequence[Point]) -> Callable[[Point], str]:
    return lambda point: load_words(point, points)


def _answered(point: Point) -> bool:
    return any(each.num_requests for each in point.repeats)


def _most(
    title: str, points: Sequence[Point], metric: Metric, words: Callable[[Point], str]
) -> Winner | None:
    had = [(value, point) for point in points if (value := point.middle(metric)) is not None]
    if not had:
        return None
    value, point = max(had, key=lambda pair: pair[0])
    figure = f"{shown(value)} {metric.unit}"
    return Winner(title, figure, words(point), _price(point), _doubt(point))


def _most_within(
    points: Sequence[Point], metric: Metric, bounds: Bounds, words: Callable[[Point], str]
) -> Winner | None:
    """The highest throughput among the points that keep to the bounds."""
    said = bounds.words()
    if not said:
        lowest = min((v for p in points if (v := p.middle(LATENCY["p99"]))), default=None)
        if lowest is None:
            return None
        bounds = Bounds(p99_ms=lowest * _NEAR)
        said = f"latency p99 of at most twice the lowest ({shown(lowest * _NEAR)} ms)"
    title = f"Highest throughput with a {said}"
    kept = [point for point in points if bounds.hold(point)]
    return _most(title, kept, metric, words) if kept else Winner(title, "none of the loads")


def _least(
    title: str, points: Sequence[Point], times: dict[str, Metric], words: Callable[[Point], str]
) -> Winner | None:
    """By the p99: what nearly every caller gets."""
    had = [(value, point) for point in points if (value := point.middle(times["p99"])) is not None]
    if not had:
        return None
    value, point = min(had, key=lambda pair: pair[0])
    median = point.middle(times["p50"])
    figure = f"p99 {shown(value)} ms" + (f", median {shown(median)} ms" if median else "")
    throughput = throughput_of(point.repeats)
    rate = f"{shown(point.middle(throughput))} {throughput.unit}"
    return Winner(title, figure, words(point), rate, _doubt(point))


def _price(point: Point) -> str:
    """The latency that comes with a throughput."""
    pairs = ((LATENCY["p99"], "latency p99"), (FIRST_TOKEN["p99"], "first token p99"))
    values = ((point.middle(metric), name) for metric, name in pairs)
    return ", ".join(f"{name} {shown(value)} ms" for value, name in values if value is not None)


def _doubt(point: Point) -> str:
    return "" if point.is_stable else "not stable"
