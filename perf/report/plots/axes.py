"""The axes of a plot, their scales and ticks, and the labels of points. Draws no lines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

from perf.report.metrics import Metric, plain
from perf.report.plots.charts import Chart
from perf.report.plots.labels import Box, Spot, places
from perf.report.plots.panels import Panel, number_at
from perf.report.plots.svg import GRID, LINE_COLOURS
from perf.report.points import Point, word

_LOG_FROM = 8.0  # the ratio of most to least from which on an axis is logarithmic
XY = tuple[float, float]
Place = Callable[[Point, Metric], XY | None]
Axes = Any  # matplotlib's annotations differ between its versions


def set_axes(axes: Axes, chart: Chart, panel: Panel, place: Place) -> None:
    """Words, ticks and scales; an axis starts at zero or is logarithmic."""
    xys = [xy for p in panel.points for m in chart.figures if (xy := place(p, m))]
    axes.grid(visible=True, color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(length=3)
    axes.set_ylabel(_capital(chart.unit))
    _set_scale(axes.yaxis, [y for _, y in xys], chart.may_be_log)
    if chart.is_share:
        axes.set_ylim(0, max(100.0, *(y * 1.05 for _, y in xys)))
    elif axes.get_yscale() == "linear":
        axes.set_ylim(0, _most(panel, chart.figures) * 1.08 or 1.0)
    if chart.against:
        axes.set_xlabel(_capital(chart.against.heading))
        _set_scale(axes.xaxis, [x for x, _ in xys], True)
        if axes.get_xscale() == "linear":
            axes.set_xlim(0, _most(panel, [chart.against]) * 1.08 or 1.0)
    else:
        axes.set_xlabel(_capital(axis_words(panel)))
        _set_load_axis(axes, sorted({x for x, _ in xys}))


def _most(panel: Panel, metrics: Sequence[Metric]) -> float:
    """The end of the longest spread."""
    spreads = (point.spread(metric) for point in panel.points for metric in metrics)
    return max((spread.most for spread in spreads if spread), default=0.0)


def axis_words(panel: Panel) -> str:
    """What the load's axis counts."""
    words = {"concurrency": "concurrency (callers)", "request_rate": "request rate (requests/s)"}
    return words.get(panel.axis[1], word(panel.axis))


def _set_scale(axis: Any, values: Sequence[float], may_be_log: bool) -> None:
    """Logarithmic where the values span a lot."""
    least, most = min(values), max(values)
    axis.set_major_formatter(FuncFormatter(_tick))
    if not (may_be_log and least > 0 and most / least >= _LOG_FROM):
        axis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
        return
    axis.axes.set(**{f"{axis.axis_name}scale": "log"})
    subs = (1.0, 2.0, 5.0) if most / least < 1000 else (1.0,)
    axis.set_major_locator(LogLocator(subs=subs, numticks=12))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(_tick))


def _set_load_axis(axes: Axes, values: Sequence[float]) -> None:
    """A tick at each load, where there are few; powers of two evenly spaced."""
    is_log = values[0] > 0 and values[-1] / values[0] >= 8 and len(values) > 2
    if is_log:
        axes.set_xscale("log", base=2)
        axes.set_xlim(values[0] / 1.2, values[-1] * 1.2)
    elif len(values) == 1:
        axes.set_xlim(values[0] - 1, values[0] + 1)
    ticks = _spaced(values, is_log)
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(_tick))


def _spaced(values: Sequence[float], is_log: bool) -> list[float]:
    """Those that are not too close to the one before to have a tick of their own."""
    span = values[-1] - values[0]
    kept: list[float] = []
    for value in values:
        far = (
            not kept
            or (is_log and value / kept[-1] >= (values[-1] / values[0]) ** 0.075)
            or (not is_log and value - kept[-1] >= span * 0.075)
        )
        if far:
            kept.append(value)
    return kept


def label_points(figure: Any, axes: Axes, chart: Chart, panel: Panel, place: Place) -> None:
    """The load at each point, as far as there is room; ends of lines first."""
    if len({number_at(point.load, panel.axis) for point in panel.points}) < 2:
        return  # the same number at each
    to_points = 72 / figure.dpi
    spots: list[Spot] = []
    colours: list[str] = []
    bars: list[Box] = []
    for line, colour in zip(panel.lines, LINE_COLOURS, strict=False):
        at = [(p, xy) for p in line.points if (xy := place(p, chart.figures[0]))]
        at = at[-1:] + at[:1] + at[1:-1] if len(at) > 1 else at
        for point, xy in at:
            x, y = axes.transData.transform(xy) * to_points
            bars += _bars(axes, chart, point, to_points)
            load = number_at(point.load, panel.axis)
            colours.append(colour)
            spots.append(Spot(x, y, _tick(load) if load is not None else ""))
    box = axes.get_window_extent().extents * to_points
    for spot, colour, found in zip(spots, colours, places(spots, tuple(box), bars), strict=True):
        if found:
            at_units = axes.transData.inverted().transform((spot.x / to_points, spot.y / to_points))
            axes.annotate(
                spot.text,
                at_units,
                xytext=(found.x - spot.x, found.y - spot.y),
                textcoords="offset points",
                ha="center",
                va="center",
                fontsize=8,
                color=colour,
                zorder=5,
            )


def _bars(axes: Axes, chart: Chart, point: Point, to_points: float) -> list[Box]:
    """What the spread of a point's repeats covers."""
    y, x = point.spread(chart.figures[0]), point.spread(chart.against) if chart.against else None
    if x is None or y is None or len(point.repeats) < 2:
        return []
    corners = [(x.least, y.middle), (x.most, y.middle), (x.middle, y.least), (x.middle, y.most)]
    (left, at_y), (right, _), (at_x, low), (_, high) = axes.transData.transform(corners) * to_points
    return [(left, at_y - 1, right, at_y + 1), (at_x - 1, low, at_x + 1, high)]


def _tick(value: float, _: int = 0) -> str:
    return plain(value)


def _capital(words: str) -> str:
    return words[:1].upper() + words[1:]
