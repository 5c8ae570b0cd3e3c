"""A run as one HTML page that needs no other file, in the style of the other reports."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import jinja2
from markupsafe import Markup

import perf.report
from perf.growth.curves import Drawn, Section
from perf.growth.plot import draw
from perf.report.schema import Run

_FOLDERS = (Path(__file__).parent, Path(perf.report.__file__).parent)


@dataclass(frozen=True)
class Plot:
    """A chart, its drawing, and its legend: which line, and its words."""

    drawn: Drawn
    svg: Markup
    lines: tuple[tuple[int, str], ...]

    @property
    def said(self) -> str:
        """What it shows, for who can't see it."""
        curves = self.drawn.curves
        told = (f"{self.drawn.label(curve)} {curve.verdict()}" for curve in curves)
        return f"{self.drawn.chart.title}: {'. '.join(told)}."


def to_html(run: Run, sections: list[Section]) -> str:
    """The page. Raises ModuleNotFoundError without matplotlib."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDERS),
        undefined=jinja2.StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    plots = {section.axis.name: _plots(section) for section in sections}
    template = environment.get_template("growth.html.j2")
    return template.render(run=run, sections=sections, plots=plots)


def _plots(section: Section) -> list[Plot]:
    return [
        Plot(
            drawn,
            Markup(draw(drawn, f"{section.axis.name}-{at}")),
            tuple((line, drawn.label(curve)) for line, curve in enumerate(drawn.curves)),
        )
        for at, drawn in enumerate(section.charts)
    ]
