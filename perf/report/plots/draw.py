"""Draws one chart of one panel as SVG, by matplotlib. No text from outside gets into it: names
stand in the page's legend.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import Any

import matplotlib as mpl
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from perf.report.metrics import Metric
from perf.report.plots.axes import XY, Axes, Place, label_points, set_axes
from perf.report.plots.charts import Chart
from perf.report.plots.panels import Line, Panel, number_at
from perf.report.plots.svg import INK, LINE_COLOURS, MUTED, PAPER, inline
from perf.report.points import Point

MARKERS = ("o", "s", "^", "D", "v", "P")
SIZE_IN = (5.0, 3.4)  # 360 units wide: as wide as a phone, so that 9 stays 9 pixels
_WITHIN = (0.145, 0.145, 0.84, 0.815)  # left, bottom, width, height; fits ticks of six characters
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "text.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.unicode_minus": True,
    "path.simplify": False,
}


def draw(chart: Chart, panel: Panel, name: str) -> str:
    """The plot as an ``<svg>`` element whose ids all begin with ``name``; empty where the panel has
    no figures for it.
    """
    place = _place(chart, panel)
    if not any(place(point, m) for point in panel.points for m in chart.figures):
        return ""
    with mpl.rc_context({**STYLE, "svg.hashsalt": name}):
        figure = Figure(figsize=SIZE_IN)
        FigureCanvasSVG(figure)
        axes: Axes = figure.add_axes(_WITHIN)
        for line in panel.others:
            _draw_line(axes, line, chart, place, MUTED, "")
        for line, colour, marker in zip(panel.lines, LINE_COLOURS, MARKERS, strict=False):
            _draw_line(axes, line, chart, place, colour, marker)
        set_axes(axes, chart, panel, place)
        if chart.against:
            label_points(figure, axes, chart, panel, place)
        return inline(saved(figure), name)


def _place(chart: Chart, panel: Panel) -> Place:
    """Where a point stands in the chart."""

    def place(point: Point, metric: Metric) -> XY | None:
        x = point.middle(chart.against) if chart.against else number_at(point.load, panel.axis)
        y = point.middle(metric)
        return None if x is None or y is None else (x, y)

    return place


def _draw_line(
    axes: Axes, line: Line, chart: Chart, place: Place, colour: str, marker: str
) -> None:
    """With the spread of repeats and markers, or, without a marker, thin points."""
    for stroke in chart.strokes:
        points = [point for point in line.points if place(point, stroke.metric)]
        xys = [xy for point in points if (xy := place(point, stroke.metric))]
        if not xys:
            continue
        axes.plot(*zip(*xys, strict=True), stroke.dash, color=colour, linewidth=1.6, zorder=2)
        if not marker:
            axes.plot(*zip(*xys, strict=True), ".", color=colour, markersize=4, zorder=2)
            continue
        several = [(p, xy) for p, xy in zip(points, xys, strict=True) if len(p.repeats) > 1]
        if several:
            reach = _reach(several, stroke.metric, chart.against)
            style = {"fmt": "none", "ecolor": colour, "elinewidth": 1, "capsize": 2, "zorder": 3}
            axes.errorbar(*zip(*(xy for _, xy in several), strict=True), **style, **reach)
        for is_sound, face in ((True, colour), (False, PAPER)):  # hollow: not to be relied on
            chosen = [xy for p, xy in zip(points, xys, strict=True) if is_reliable(p) is is_sound]
            if chosen:
                style = {"color": colour, "markerfacecolor": face, "markersize": 5, "zorder": 4}
                axes.plot(*zip(*chosen, strict=True), marker, **style)


def is_reliable(point: Point) -> bool:
    """Whether all repeats were stable and without errors."""
    return point.is_stable and not point.num_errors


def _reach(
    several: Iterable[tuple[Point, XY]], metric: Metric, against: Metric | None
) -> dict[str, list[list[float]]]:
    """How far the repeats lie below and above their median; on both axes where both are figures."""
    found = {}
    for name, of in (("yerr", metric), ("xerr", against)):
        spreads = [spread for point, _ in several if of and (spread := point.spread(of))]
        if of:
            below = [s.middle - s.least for s in spreads]
            found[name] = [below, [s.most - s.middle for s in spreads]]
    return found


def saved(figure: Figure) -> str:
    """matplotlib's SVG, the same for the same figure."""
    written = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(written, format="svg", transparent=True, metadata=nothing)
    return written.getvalue()
