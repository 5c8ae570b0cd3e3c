"""Names in sentences the best load of each kind of work and each target."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from perf.report.metrics import FIRST_TOKEN, LATENCY, Metric, shown, throughput_of
from perf.report.points import WORK, Point, grouped, load_words, varying, words_for

_NEAR = 2.0  # times the lowest p99: hardly noticeable; the bound where none was given


@dataclass(frozen=True)
class Bounds:
    """Latency bounds in milliseconds; None means no bound."""

    p99_ms: float | None = None
    ttft_p99_ms: float | None = None

    def words(self) -> str:
        """Describes the bounds, such as ``latency p99 of at most 200 ms``."""
        named = (("latency p99", self.p99_ms), ("first token p99", self.ttft_p99_ms))
        return " and ".join(f"{name} of at most {shown(ms)} ms" for name, ms in named if ms)

    def hold(self, point: Point) -> bool:
        """Whether a point is known to meet the bounds."""
        pairs = ((LATENCY["p99"], self.p99_ms), (FIRST_TOKEN["p99"], self.ttft_p99_ms))
        values = ((point.middle(metric), ms) for metric, ms in pairs if ms is not None)
        return all(value is not None and value <= ms for value, ms in values)


def best(points: Sequence[Point], bounds: Bounds, *, compares_targets: bool) -> Iterator[str]:
    """One sentence for each kind of work and target; where targets are compared, one winner for
    each kind of work.
    """
    differing = varying([point.load for point in points])
    keys = [key for key in ("target", *WORK) if key in differing]
    keys = [key for key in keys if key != "target"] if compares_targets else keys
    for words, part in grouped(points, lambda point: words_for(point.load, keys)).items():
        yield from (f"{words}: {said}" if words else said for said in _winners(part, bounds))


def _winners(points: Sequence[Point], bounds: Bounds) -> Iterator[str]:
    sound = [point for point in points if point.is_sound]
    if not sound:
        yield "no load was answered without errors"
        return
    rate = throughput_of(each for point in points for each in point.repeats)

    def said(title: str, point: Point) -> str:
        figures = f"{shown(point.middle(rate))} {rate.unit}"
        for name, metric in (("latency", LATENCY["p99"]), ("first token", FIRST_TOKEN["p99"])):
            value = point.middle(metric)
            figures += f", {name} p99 {shown(value)} ms" if value is not None else ""
        among = [each.load for each in points] if len(points) > 1 else []
        where = f" with {load_words(point.load, among)}" if among else ""
        return f"{title}: {figures}{where}" + "".join(f"; {each}" for each in point.remarks())

    yield said("highest throughput", max(sound, key=lambda each: each.middle(rate) or 0.0))
    given = bounds.words()
    if not given and (lowest := min(_known(sound, LATENCY["p99"]), default=None)):
        bounds = Bounds(p99_ms=lowest * _NEAR)
        given = f"{bounds.words()}, twice the lowest"
    kept = [point for point in sound if bounds.hold(point)]
    title = f"highest throughput with a {given}"
    if given and not kept:
        yield f"{title}: none of the loads"
    elif given and len(points) > 1:
        yield said(title, max(kept, key=lambda each: each.middle(rate) or 0.0))
    for title, metric in (
        ("lowest latency p99", LATENCY["p99"]),
        ("lowest time to first token p99", FIRST_TOKEN["p99"]),
    ):
        had = [point for point in sound if point.middle(metric) is not None]
        if had and len(points) > 1:
            yield said(title, min(had, key=lambda each: each.middle(metric) or 0.0))


def _known(points: Sequence[Point], metric: Metric) -> list[float]:
    return [value for point in points if (value := point.middle(metric)) is not None]
