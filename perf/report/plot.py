"""The plot of a page: latency over throughput, a line for each target and kind of work."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from perf.report.points import LATENCY, Point, grouped, shown, throughput_of, varying, words_for

MAX_LINES = 8  # more lines can't be told apart: the ones with the highest throughput are drawn
_LOADS = ("concurrency", "request_rate")
_COLOURS = "petroff10"  # for all kinds of colour vision
_MARKERS = "os^DvPX*"
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "hf-triton",  # the same run gives the same bytes
    "text.parse_math": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#dcddde",
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def plot(points: Sequence[Point]) -> Markup | None:
    """Draws the ``<svg>``; None where no load has both figures or matplotlib is not installed."""
    rate, latency = throughput_of(m for p in points for m in p.repeats), LATENCY["p99"]
    drawn = [p for p in points if p.middle(rate) and p.middle(latency)]
    try:
        import matplotlib as mpl
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure
    except ImportError:
        return None
    if not drawn:
        return None
    names = [name for name in varying([point.load for point in drawn]) if name not in _LOADS]
    lines = grouped(drawn, lambda point: words_for(point.load, names or ["target", "endpoint"]))
    kept = sorted(lines, key=lambda name: -max(p.middle(rate) or 0 for p in lines[name]))
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(8, 4.5), layout="constrained")
        FigureCanvasSVG(figure)
        axes: Any = figure.add_subplot()
        for name, colour, marker in zip(
            kept, mpl.color_sequences[_COLOURS], _MARKERS, strict=False
        ):
            line = sorted(lines[name], key=lambda p: p.load.concurrency or p.load.request_rate or 0)
            spots = [(p.middle(rate) or 0.0, p.middle(latency) or 0.0) for p in line]
            axes.plot(*zip(*spots, strict=True), color=colour, marker=marker, label=name or "all")
            for point, spot in zip(line, spots, strict=True):
                load = point.load.concurrency or point.load.request_rate
                axes.annotate(
                    shown(load), spot, (0, 6), textcoords="offset points", ha="center", fontsize=8
                )
        highest = max(point.middle(latency) or 0.0 for point in drawn)
        limits = {"xlim": (0, None), "ylim": (0, 1.15 * highest)}  # room for the numbers
        axes.set(xlabel=rate.heading, ylabel=latency.heading, **limits)
        left_out = f"; {len(kept) - MAX_LINES} more are left out" if len(kept) > MAX_LINES else ""
        axes.legend(fontsize=8, title=f"numbers: requests at once, or a second{left_out}")
        written = io.StringIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(written, format="svg", metadata=nothing)
    return Markup(written.getvalue()[written.getvalue().index("<svg") :])
