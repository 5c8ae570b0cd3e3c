"""Draws a chart on logarithmic axes, by matplotlib, and beside it what is linear."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from perf.growth.report.curves import Curve, Drawn
from perf.report.plots.draw import MARKERS, SIZE_IN, STYLE, saved
from perf.report.plots.svg import GRID, LINE_COLOURS, MUTED, inline


def draw(drawn: Drawn, name: str) -> str:
    """The chart as an ``<svg>`` element whose ids begin with ``name``."""
    with mpl.rc_context({**STYLE, "svg.hashsalt": name}):
        figure = Figure(figsize=SIZE_IN, layout="constrained")
        FigureCanvasSVG(figure)
        axes: Any = figure.add_subplot()
        axes.set(xscale="log", yscale="log")
        axes.grid(visible=True, color=GRID, linewidth=0.6)
        axes.set_axisbelow(True)
        for curve, colour, marker in zip(drawn.curves, LINE_COLOURS, MARKERS, strict=False):
            _draw_curve(axes, curve, colour, marker)
        _set_axes(axes, drawn)
        _draw_linear(axes, drawn.curves)
        return inline(saved(figure), name)


def _draw_curve(axes: Any, curve: Curve, colour: str, marker: str) -> None:
    """The medians, and from the least to the most of the repeats."""
    ns = list(curve.values)
    middle = [curve.middle(n) or 0.0 for n in ns]
    axes.plot(ns, middle, color=colour, marker=marker, markersize=4.5, linewidth=1.6, zorder=3)
    least = [min(values) for values in curve.values.values()]
    most = [max(values) for values in curve.values.values()]
    axes.vlines(ns, least, most, color=colour, linewidth=1, zorder=2)


def _set_axes(axes: Any, drawn: Drawn) -> None:
    points, curve = drawn.points, drawn.curves[0]
    values = [v for each in drawn.curves for vs in each.values.values() for v in vs if v > 0]
    least, most = min(values, default=1.0), max(values, default=1.0)
    axes.set_xlim(points[0] / 1.2, points[-1] * 1.2)
    axes.set_ylim(least / 2, most * 2)
    axes.set_xlabel(curve.axis.unit.capitalize())
    axes.xaxis.set_major_locator(FixedLocator(_spaced(points)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    subs = (1.0, 2.0, 5.0) if most / least < 100 else (1.0,)
    axes.yaxis.set_major_locator(LogLocator(subs=subs, numticks=12))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: curve.figure.round_text(value)))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(NullLocator())


def _spaced(points: Sequence[int]) -> list[int]:
    """Those that are not too close to the one before for a tick of their own."""
    kept: list[int] = []
    for point in points:
        if not kept or point / kept[-1] >= (points[-1] / points[0]) ** 0.09:
            kept.append(point)
    return kept


def _draw_linear(axes: Any, curves: Sequence[Curve]) -> None:
    """A line on which twice as much takes twice as much, through the highest curve's end."""
    ends = [(curve.middle(n) or 0.0, n) for curve in curves for n in list(curve.values)[-1:]]
    most, n = max(ends)
    if most > 0:
        first = min(n for curve in curves for n in curve.values)
        axes.plot([first, n], [most * first / n, most], "--", color=MUTED, linewidth=1.2, zorder=1)
