"""The plots of a page, each with its legend and what it says in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from perf.report.metrics import Metric, shown
from perf.report.plots.charts import Chart, charts
from perf.report.plots.panels import Panel
from perf.report.points import Point
from perf.report.schema import Measurement

_NO_PLOTS = "Plots need matplotlib: pip install 'hf-triton[perf]', then make the report again."


@dataclass(frozen=True)
class Plot:
    """One drawing, its title, what it says in words, and its legend."""

    svg: Markup
    title: str
    said: str
    lines: tuple[tuple[int, str], ...]  # colour and marker, and words
    others: int  # lines without a colour of their own
    strokes: tuple[tuple[str, str], ...]  # dash and words


@dataclass(frozen=True)
class Section:
    """All panels of one chart."""

    chart: Chart
    plots: tuple[Plot, ...]


def drawn_sections(
    measurements: Sequence[Measurement], drawn: Sequence[Panel], names: Sequence[str] = ()
) -> tuple[list[Section], str]:
    """The plots, of all charts or of those with these names; and why there are none, where
    matplotlib is missing.
    """
    try:
        from perf.report.plots.draw import draw
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "matplotlib":
            raise
        return [], _NO_PLOTS
    sections = []
    for chart in charts(measurements, drawn):
        if names and chart.name not in names:
            continue
        named = ((f"{chart.name}-{at}", panel) for at, panel in enumerate(drawn))
        pairs = [(panel, draw(chart, panel, name)) for name, panel in named]
        plots = (_plot(chart, panel, svg) for panel, svg in pairs if svg)
        sections.append(Section(chart, tuple(plots)))
    return sections, ""


def _plot(chart: Chart, panel: Panel, svg: str) -> Plot:
    lines = tuple(
        (at, line.label) for at, line in enumerate(panel.lines) if _has(line.points, chart.figures)
    )
    others = sum(_has(line.points, chart.figures) for line in panel.others)
    had = [each for each in chart.strokes if _has(panel.points, [each.metric])]
    strokes = tuple((each.dash, each.words) for each in had if len(had) > 1)
    return Plot(Markup(svg), panel.title, _said(chart, panel), lines, others, strokes)


def _has(found: Sequence[Point], metrics: Sequence[Metric]) -> bool:
    return any(point.middle(metric) is not None for point in found for metric in metrics)


def _said(chart: Chart, panel: Panel) -> str:
    """What the plot shows, for who can't see it: from where to where each line goes."""
    sentences = []
    for line in panel.lines:
        for stroke in chart.strokes:
            values = [v for p in line.points if (v := p.middle(stroke.metric)) is not None]
            if values:
                name = ", ".join(filter(None, (line.label, stroke.words)))
                sentences.append(f"{name}: {shown(min(values))} to {shown(max(values))}.")
    return f"{chart.title}, {chart.unit}. " + " ".join(sentences)
