"""Writes what people read of a run beside it: growth.md, growth.html, run.csv and report.json."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import perf.report
from perf.growth.report.curves import Drawn, Section, sections
from perf.report.csv_table import to_csv
from perf.report.markdown import table
from perf.report.results import REPORT_FILE, read_results
from perf.report.schema import Run
from perf.report.written import write_text

if TYPE_CHECKING:
    from markupsafe import Markup

MARKDOWN_FILE, PAGE_FILE, CSV_FILE = "growth.md", "growth.html", "run.csv"
_FOLDERS = (Path(__file__).parent, Path(perf.report.__file__).parent)


def write_growth(folder: Path) -> list[Section]:
    """Makes them anew from the run's own two files; returns what they show.

    Raises PerfError (not a run), OSError, ModuleNotFoundError without matplotlib; then all but the
    page are written.
    """
    results = read_results(folder)
    found = sections(results.measurements)
    write_text(folder / REPORT_FILE, json.dumps(results.document(), indent=2) + "\n")
    write_text(folder / CSV_FILE, to_csv(results.measurements))
    write_text(folder / MARKDOWN_FILE, to_markdown(results.run, found))
    write_text(folder / PAGE_FILE, to_html(results.run, found))
    return found


def to_markdown(run: Run, found: list[Section]) -> str:
    """A table for each chart, and how each of its curves grows."""
    cpu, cores = run.hardware.get("cpu", ""), run.hardware.get("cores", "")
    lines = [
        *("# How time and memory grow", ""),
        f"{run.created}, commit {run.commit}: {cpu}, {cores} cores, load average before ",
        f"{run.hardware.get('load_average', '?')}. `{run.command}`",
        *([""] if run.notes else []),
        *(f"- {note}" for note in run.notes),
    ]
    for section in found:
        lines += ["", f"## {section.axis.title}", "", section.axis.note]
        if section.num_errors:
            failed = f"**{section.num_errors} requests failed**"
            lines += ["", f"{failed}, the first with: {section.first_error}"]
        for drawn in section.charts:
            heads = [section.axis.unit, *map(drawn.label, drawn.curves)]
            rows = [[f"{n:,}", *(curve.text(n) for curve in drawn.curves)] for n in drawn.points]
            lines += ["", f"### {drawn.chart.title}", "", *table(heads, rows, ">"), ""]
            lines += _growth(drawn)
    return "\n".join([*lines, ""])


def _growth(drawn: Drawn) -> Iterator[str]:
    for curve in drawn.curves:
        verdict = curve.verdict()
        yield f"- {drawn.label(curve)}: {f'**{verdict}**' if curve.is_worse else verdict}"
        if curve.is_worse:
            yield f"  {drawn.explanation(curve)}"


@dataclass(frozen=True)
class Plot:
    """A chart, its drawing, its legend (which line, and its words), and what it shows in words."""

    drawn: Drawn
    svg: Markup
    lines: tuple[tuple[int, str], ...]
    said: str


def to_html(run: Run, found: list[Section]) -> str:
    """One page that needs no other file. Raises ModuleNotFoundError without matplotlib."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDERS),
        undefined=jinja2.StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    plots = {section.axis.name: _plots(section) for section in found}
    template = environment.get_template("growth.html.j2")
    return template.render(run=run, sections=found, plots=plots)


def _plots(section: Section) -> list[Plot]:
    from markupsafe import Markup

    from perf.growth.report.plot import draw

    plots = []
    for at, drawn in enumerate(section.charts):
        labels = [drawn.label(curve) for curve in drawn.curves]
        told = [
            f"{label} {curve.verdict()}" for label, curve in zip(labels, drawn.curves, strict=True)
        ]
        svg = Markup(draw(drawn, f"{section.axis.name}-{at}"))
        said = f"{drawn.chart.title}: {'. '.join(told)}."
        plots.append(Plot(drawn, svg, tuple(enumerate(labels)), said))
    return plots
