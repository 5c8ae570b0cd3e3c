"""Which points make a line, and which lines stand in one plot: at most as many as eyes tell apart.

Knows loads and which of two lines is better; nothing of how a plot is drawn.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from perf.report.metrics import throughput_of
from perf.report.points import (
    CONCURRENCY,
    ENDPOINT,
    REQUEST_RATE,
    TARGET,
    Key,
    Point,
    dimensions,
    grouped,
    values_at,
    varying,
    words_for,
)
from perf.report.schema import Load, Value

MAX_LINES, MAX_PANELS = 6, 8
COMPARES_TARGETS = ("baselines",)  # kinds of runs in which every target does the same work
COMPARES_RUNS = "comparison"  # of two runs, told apart by the setting RUN
RUN: Key = ("setting", "run")


@dataclass(frozen=True)
class Line:
    """Points that differ in one number only, sorted by it."""

    label: str
    points: tuple[Point, ...]


@dataclass(frozen=True)
class Panel:
    """The lines of one plot; ``others`` are too many to be told apart."""

    title: str
    axis: Key
    lines: tuple[Line, ...]
    others: tuple[Line, ...] = ()

    @property
    def points(self) -> list[Point]:
        return [point for line in (*self.lines, *self.others) for point in line.points]


def panels(kind: str, points: Sequence[Point]) -> list[Panel]:
    """One for each target, or, where targets are compared, for each kind of work; open and closed
    loops apart. Where that leaves one line in each, they stand together.
    """
    closed = [point for point in points if point.load.request_rate is None]
    opened = [point for point in points if point.load.request_rate is not None]
    if not closed or not opened:
        return _of_loop(kind, points)
    return [
        replace(panel, title=", ".join(filter(None, (panel.title, words))))
        for words, loop in (("closed loop", closed), ("open loop", opened))
        for panel in _of_loop(kind, loop)
    ]


def number_at(load: Load, axis: Key) -> float | None:
    """Where a load stands on the axis; None where it has no number there."""
    value = dimensions(load).get(axis)
    try:
        number = math.nan if value is None or isinstance(value, bool) else float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _of_loop(kind: str, points: Sequence[Point]) -> list[Panel]:
    parts = [_panel(kind, title, part) for title, part in _parts(kind, points)]
    are_alike = all(len(part.lines) == 1 and part.axis == parts[0].axis for part in parts)
    if len(parts) > 1 and are_alike and kind != COMPARES_RUNS:
        return [_panel(kind, "", points)]
    return parts


def _parts(kind: str, points: Sequence[Point]) -> list[tuple[str, list[Point]]]:
    """What is drawn apart, each with the words for what it is."""
    differing = varying([point.load for point in points])
    loops = (CONCURRENCY, REQUEST_RATE)
    if kind == COMPARES_RUNS:
        keys = [key for key in differing if key not in (RUN, *loops)]
    elif kind in COMPARES_TARGETS:
        rest = [key for key in differing if key not in (TARGET, *loops)]
        keys = [key for key in rest if _is_shared(key, points)]
    else:
        keys = [key for key in differing if key == TARGET]
    groups = grouped(points, lambda point: values_at(point.load, keys))
    return [(words_for(keys, values), part) for values, part in groups.items()]


def _is_shared(key: Key, points: Sequence[Point]) -> bool:
    """Whether each value was measured of several targets: they are compared at each by itself."""
    targets: dict[Value, set[str]] = {}
    for point in points:
        targets.setdefault(dimensions(point.load).get(key), set()).add(point.load.target)
    return all(len(each) > 1 for each in targets.values())


def _panel(kind: str, title: str, points: Sequence[Point]) -> Panel:
    loads = [point.load for point in points]
    axis = _axis(kind, loads)
    keys = [key for key in varying(loads) if key != axis] or [TARGET, ENDPOINT]
    groups = grouped(points, lambda point: values_at(point.load, keys))
    lines = [Line(words_for(keys, values), _sorted(part, axis)) for values, part in groups.items()]
    shown = _best(lines)
    others = tuple(line for line in lines if line not in shown)
    return Panel(title, axis, tuple(line for line in lines if line in shown), others)


def _axis(kind: str, loads: Sequence[Load]) -> Key:
    """The number that varies, callers and rate first; a tuner's settings are no axis."""
    usual = REQUEST_RATE if loads[0].request_rate is not None else CONCURRENCY
    if usual in (differing := varying(loads)) or kind == "tune":
        return usual
    numbers = [key for key in differing if all(number_at(load, key) is not None for load in loads)]
    return max(numbers, key=lambda key: len({number_at(x, key) for x in loads}), default=usual)


def _sorted(points: Iterable[Point], axis: Key) -> tuple[Point, ...]:
    return tuple(sorted(points, key=lambda point: number_at(point.load, axis) or 0.0))


def _best(lines: Sequence[Line]) -> Sequence[Line]:
    """The lines with the highest throughputs, where not all of them can be shown."""
    if len(lines) <= MAX_LINES:
        return lines
    metric = throughput_of(each for line in lines for pt in line.points for each in pt.repeats)

    def highest(line: Line) -> float:
        return max(point.middle(metric) or 0.0 for point in line.points)

    return sorted(lines, key=highest, reverse=True)[:MAX_LINES]
