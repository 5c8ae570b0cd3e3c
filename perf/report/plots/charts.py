"""Which plots a page has, how each is to be read, and what each says in words."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from perf.report.metrics import (
    BETWEEN_TOKENS,
    FIRST_TOKEN,
    LATENCY,
    ROOFLINE,
    TOKENS,
    Metric,
    listed,
    plain,
    shown,
    throughput_of,
)
from perf.report.plots.panels import Line, Panel, number_at
from perf.report.points import Point, word
from perf.report.schema import Measurement

if TYPE_CHECKING:
    from markupsafe import Markup

    from perf.report.plots import drawing

NO_PLOTS = "Plots need matplotlib: pip install 'matplotlib>=3.10,<4', then make the report again."
_AXIS_WORDS = {"concurrency": "concurrency (callers)", "request_rate": "request rate (requests/s)"}


class Figure(NamedTuple):
    """What a line is of; of several the dash tells them apart."""

    metric: Metric
    words: str = ""
    dash: str = "-"


@dataclass(frozen=True)
class Chart:
    """One kind of plot; ``against`` is the figure on the x axis, else the load is."""

    name: str
    title: str
    reading: str
    figures: Sequence[Figure]
    unit: str = ""
    against: Metric | None = None

    @property
    def is_share(self) -> bool:
        """Whether the axis goes from 0 to 100 %."""
        return self.figures[0].metric.unit.startswith("%")

    def place(self, point: Point, metric: Metric, panel: Panel) -> tuple[float, float] | None:
        """Where a point stands."""
        x = point.middle(self.against) if self.against else number_at(point.load, panel.axis)
        y = point.middle(metric)
        return None if x is None or y is None else (x, y)


@dataclass(frozen=True)
class Plot:
    """One drawing, its title, what it says in words, and its legend."""

    svg: Markup
    title: str
    said: str
    lines: Sequence[tuple[int, str]]  # colour and marker, and words
    others: int = 0  # lines without a colour of their own
    strokes: Sequence[tuple[str, str]] = ()  # dash and words


@dataclass(frozen=True)
class Section:
    """All panels of one chart."""

    chart: Chart
    plots: Sequence[Plot]


def sections(
    measurements: Sequence[Measurement], panels: Sequence[Panel], names: Sequence[str] = ()
) -> list[Section] | None:
    """The charts for which there is something to draw, or those of ``names``; of points that form
    no line only how they lie to each other. None without matplotlib.
    """
    try:
        import matplotlib  # noqa: F401
    except ModuleNotFoundError:
        return None
    lines = [line for panel in panels for line in (*panel.lines, *panel.others)]
    are_scattered = all(len(line.points) == 1 for line in lines)
    found = []
    for chart in _charts(measurements, alone=all(len(panel.lines) == 1 for panel in panels)):
        if (chart.against or not are_scattered) and (not names or chart.name in names):
            plots = [plot for at, p in enumerate(panels) if (plot := _plot(chart, p, at))]
            found += [Section(chart, plots)] if plots else []
    return found


def _charts(measurements: Sequence[Measurement], *, alone: bool) -> list[Chart]:
    """All; of times median and p99, and where there is but one line, p90 and p95 between them."""
    rate = throughput_of(measurements)
    dashes = {"p50": "-", "p90": "-.", "p95": ":", "p99": "--"}
    shown_times = dashes if alone else {"p50": "-", "p99": "--"}

    def times(name: str, title: str, metrics: dict[str, Metric], reading: str) -> Chart:
        figures = [Figure(metrics[which], which, dash) for which, dash in shown_times.items()]
        return Chart(name, title, reading, figures, f"{title.lower()} (ms)")

    use = [Figure(listed("machine", "cpu_share"), "CPU")]
    if has_gpu := any("gpu_share" in each.machine for each in measurements):
        use.append(Figure(listed("machine", "gpu_share"), "GPU", "--"))
    return [
        Chart(
            "trade-off",
            "Throughput against latency",
            "Up and to the left is better. The number at a point is its load; where a line turns "
            "right without rising, more load only waits.",
            [Figure(rate)],
            against=LATENCY["p99"],
        ),
        Chart("throughput", "Throughput by load", "Higher is better.", [Figure(rate)]),
        times(
            "latency", "Latency", LATENCY, "From sending a request to its answer; lower is better."
        ),
        times(
            *("ttft", "Time to first token", FIRST_TOKEN),
            "From sending to the first chunk; lower is better.",
        ),
        times(
            *("itl", "Time between tokens", BETWEEN_TOKENS),
            "From one chunk to the next; lower is better.",
        ),
        Chart(
            *("tokens", "Output tokens", "All callers together; higher is better."),
            [Figure(TOKENS)],
        ),
        Chart(
            *("occupancy", "Batch occupancy"),
            "Rows computed together in the mean: how much of batching's gain is had.",
            [Figure(listed("server", "batch_occupancy"))],
            "rows computed together",
        ),
        Chart(
            *("queue", "Time in the queue"),
            "Of the time that a request spends in the server. Much: more instances or larger "
            "batches may help; little: computing is the limit.",
            [Figure(listed("server", "queue_share"))],
            "share of the server's time (%)",
        ),
        Chart(
            *("use", "CPU and GPU use" if has_gpu else "CPU use"),
            "Of all cores" + (", and of the time that the GPU works." if has_gpu else "."),
            *(use, "in use (%)"),
        ),
        Chart(
            *("roofline", "Share of the roofline"),
            "Of the tokens/s that the machine's memory and cores allow.",
            [Figure(ROOFLINE)],
            "of what the machine allows (%)",
        ),
    ]


def _plot(chart: Chart, panel: Panel, at: int) -> Plot | None:
    from perf.report.plots.drawing import Scale, draw

    strokes = [each for line in panel.others for each in _strokes(chart, panel, line, None)]
    coloured = {i: list(_strokes(chart, panel, line, i)) for i, line in enumerate(panel.lines)}
    strokes += [stroke for each in coloured.values() for stroke in each]
    if not strokes:
        return None
    words = chart.against.heading if chart.against else _AXIS_WORDS.get(panel.axis[1])
    unit = chart.unit or chart.figures[0].metric.heading
    x = Scale(words or word(panel.axis), plain, at_values=not chart.against)
    is_time = len(chart.figures) > 1 and not chart.is_share
    y = Scale(unit, plain, 8.0 if is_time else math.inf, least_end=100.0 * chart.is_share)
    figures = [each for each in chart.figures if any(p.spread(each.metric) for p in panel.points)]
    return Plot(
        draw(f"{chart.name}-{at}", strokes, x, y),
        panel.title,
        f"{chart.title}, {unit}. {' '.join(_said(chart, panel))}",
        [(i, line.label) for i, line in enumerate(panel.lines) if coloured[i]],
        len([line for line in panel.others if any(_strokes(chart, panel, line, None))]),
        [(each.dash, each.words) for each in figures] if len(figures) > 1 else [],
    )


def _strokes(chart: Chart, panel: Panel, line: Line, at: int | None) -> Iterator[drawing.Stroke]:
    from perf.report.plots.drawing import Mark, Stroke

    numbers = {number_at(point.load, panel.axis) for point in panel.points}
    for metric, _, dash in chart.figures:
        marks = []
        for point in line.points:
            if place := chart.place(point, metric, panel):
                load = number_at(point.load, panel.axis)
                has_label = chart.against and load is not None and len(numbers) > 1
                reach = (_reach(point, chart.against), _reach(point, metric))
                is_sound = point.is_stable and not point.num_errors
                marks.append(
                    Mark(*place, *reach, is_sound, plain(load) if has_label and load else "")
                )
        if marks:
            yield Stroke(marks, at, dash)


def _reach(point: Point, metric: Metric | None) -> tuple[float, float]:
    """How far the repeats lie below and above their median."""
    spread = point.spread(metric) if metric else None
    return (spread.middle - spread.least, spread.most - spread.middle) if spread else (0.0, 0.0)


def _said(chart: Chart, panel: Panel) -> Iterator[str]:
    """For who can't see it: from where to where each line goes."""
    for line in panel.lines:
        for metric, words, _ in chart.figures:
            values = [v for p in line.points if (v := p.middle(metric)) is not None]
            if values:
                name = ", ".join(filter(None, (line.label, words)))
                yield f"{name}: {shown(min(values))} to {shown(max(values))}."
