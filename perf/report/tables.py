"""All numbers of a run as a table of texts: a row for each load, the medians of its repeats.

Knows nothing of Markdown or HTML.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perf.report.metrics import (
    BETWEEN_TOKENS,
    FIRST_TOKEN,
    LATENCY,
    ROOFLINE,
    TOKENS,
    Metric,
    all_listed,
    listed,
    throughput_of,
)
from perf.report.points import (
    CONCURRENCY,
    ENDPOINT,
    REQUEST_RATE,
    TARGET,
    Key,
    Point,
    number_told,
    told,
    values_at,
    varying,
    word,
    words_for,
)
from perf.report.schema import Measurement


@dataclass(frozen=True)
class Cell:
    """One text; ``spread`` is the least and the most of the repeats, where there are several."""

    text: str
    spread: str = ""


@dataclass(frozen=True)
class Row:
    """The cells of one load, and what is to be said of it: errors, an unstable measurement."""

    name: tuple[str, ...]
    figures: tuple[Cell, ...]
    remarks: tuple[str, ...]
    point: Point


@dataclass(frozen=True)
class Table:
    """``names`` and ``metrics`` head the columns; ``constants`` holds for every row."""

    names: tuple[str, ...]
    metrics: tuple[Metric, ...]
    rows: tuple[Row, ...]
    constants: tuple[str, ...]


def table(points: Sequence[Point], metrics: Sequence[Metric]) -> Table:
    """Rows in the order of the points; of ``metrics`` those that any of them has."""
    loads = [point.load for point in points]
    usual = [TARGET, ENDPOINT] if any(load.endpoint for load in loads) else [TARGET]
    usual += [REQUEST_RATE] if any(load.request_rate is not None for load in loads) else []
    usual += [CONCURRENCY] if any(load.concurrency is not None for load in loads) else []
    differing = [*usual, *(key for key in varying(loads) if key not in usual)]
    had = tuple(m for m in metrics if any(point.spread(m) for point in points))
    rows = tuple(
        Row(_name(point, differing), tuple(_cell(point, m) for m in had), remarks(point), point)
        for point in points
    )
    return Table(tuple(map(_heading, differing)), had, rows, _constants(points, differing))


def every_metric(measurements: Sequence[Measurement]) -> list[Metric]:
    """All that can be said of them."""
    times = (*LATENCY.values(), *FIRST_TOKEN.values(), *BETWEEN_TOKENS.values())
    return [throughput_of(measurements), TOKENS, ROOFLINE, *times, *all_listed(measurements)]


def main_metrics(measurements: Sequence[Measurement]) -> list[Metric]:
    """Those to decide by: few enough for a table of text."""
    kinds = (LATENCY, FIRST_TOKEN, BETWEEN_TOKENS)
    times = [kind[which] for kind in kinds for which in ("p50", "p99")]
    server = [listed("server", name) for name in ("batch_occupancy", "queue_share")]
    machine = [listed("machine", name) for name in ("cpu_share", "gpu_share")]
    return [throughput_of(measurements), TOKENS, ROOFLINE, *times, *server, *machine]


def remarks(point: Point) -> tuple[str, ...]:
    """What makes its figures doubtful."""
    unstable = sum(not each.stable for each in point.repeats)
    said = []
    if point.num_errors:
        asked = point.num_errors + sum(each.num_requests for each in point.repeats)
        said.append(f"{point.num_errors:,} of {asked:,} requests failed")
    if unstable:
        of = f" {unstable} of {len(point.repeats)} times" if len(point.repeats) > 1 else ""
        said.append(f"unstable{of}")
    return (*said, *point.doubts)


def load_words(point: Point, points: Sequence[Point]) -> str:
    """What tells this load from the others, in words."""
    keys = varying([each.load for each in points]) or [TARGET, ENDPOINT]
    return words_for(keys, values_at(point.load, keys))


def _heading(key: Key) -> str:
    return "request rate (requests/s)" if key == REQUEST_RATE else word(key)


def _name(point: Point, keys: Sequence[Key]) -> tuple[str, ...]:
    values = values_at(point.load, keys)
    return tuple("" if value is None else number_told(value) for value in values)


def _cell(point: Point, metric: Metric) -> Cell:
    spread = point.spread(metric)
    if spread is None:
        return Cell("")
    least, most = metric.text(spread.least), metric.text(spread.most)
    has_spread = metric.with_spread and least != most
    return Cell(metric.text(spread.middle), f"{least} – {most}" if has_spread else "")  # noqa: RUF001


def _constants(points: Sequence[Point], differing: Sequence[Key]) -> tuple[str, ...]:
    """What is the same for every load, and not said in the table."""
    if not points:
        return ()
    first = points[0].load
    names = ("input_name", "prompt_tokens", "output_tokens")
    keys: list[Key] = [("load", name) for name in names] + [("setting", n) for n in first.settings]
    keys += [("load", "batch_size")] if first.batch_size != 1 else []
    left = [key for key in keys if key not in differing]
    pairs = zip(left, values_at(first, left), strict=True)
    return tuple(told(key, value) for key, value in pairs if value not in (None, ""))
