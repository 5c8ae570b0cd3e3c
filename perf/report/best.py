"""Names in sentences the best load of each kind of work and each target."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from perf.report.metrics import FIRST_TOKEN, LATENCY, Metric, shown, throughput_of
from perf.report.points import WORK, Point, grouped, load_words, varying, words_for

_NEAR = 2  # times the lowest p99: hardly noticeable


def best(points: Sequence[Point]) -> Iterator[str]:
    """Sentences for each kind of work and target."""
    if not points:
        yield "nothing was measured"
    differing = varying([point.load for point in points])
    keys = [key for key in ("target", *WORK) if key in differing]
    for words, part in grouped(points, lambda point: words_for(point.load, keys)).items():
        yield from (f"{words}: {said}" if words else said for said in _winners(part))


def _winners(points: Sequence[Point]) -> Iterator[str]:
    rate, latency = throughput_of(m for p in points for m in p.repeats), LATENCY["p99"]
    sound = [point for point in points if point.is_sound and point.middle(latency)]
    if not sound:
        yield "no load was answered without errors"
        return

    def rate_of(point: Point) -> float:
        return point.middle(rate) or 0.0

    lowest = _lowest(sound, latency)
    bound = _NEAR * (lowest.middle(latency) or 0.0)
    near = [point for point in sound if (point.middle(latency) or 0.0) <= bound]
    winners = {
        "highest throughput": max(sound, key=rate_of),
        f"highest throughput with at most {_NEAR} times the lowest latency p99, "
        f"{shown(bound)} ms": max(near, key=rate_of),
        "lowest latency p99": lowest,
    }
    if streams := [point for point in sound if point.middle(FIRST_TOKEN["p99"])]:
        winners["lowest first token p99"] = _lowest(streams, FIRST_TOKEN["p99"])
    for title, point in winners.items():
        figures = f"{shown(rate_of(point))} {rate.unit}"
        for metric in (latency, FIRST_TOKEN["p99"]):
            value = point.middle(metric)
            figures += f", {metric.label} {shown(value)} ms" if value else ""
        where = load_words(point.load, [each.load for each in points])
        yield "; ".join([f"{title}: {figures} with {where}", *point.remarks()])


def _lowest(points: Sequence[Point], metric: Metric) -> Point:
    return min(points, key=lambda point: point.middle(metric) or 0.0)
