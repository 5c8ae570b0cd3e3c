"""Writes what people read of a run beside it: growth.md, growth.html, run.csv and report.json."""

from __future__ import annotations

import json
from pathlib import Path

from perf.growth.curves import Drawn, Section, sections
from perf.report.csv_table import to_csv
from perf.report.markdown import table
from perf.report.page import render
from perf.report.plots.charts import Plot
from perf.report.results import REPORT_FILE, read_results
from perf.report.schema import Run
from perf.report.written import write_text

MARKDOWN_FILE, PAGE_FILE, CSV_FILE = "growth.md", "growth.html", "run.csv"
_TEMPLATE = Path(__file__).with_name("growth.html.j2")


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
    page = render(_TEMPLATE, run=results.run, sections=found, plot_of=_plot)
    write_text(folder / PAGE_FILE, page)
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
            lines += ["", f"### {drawn.chart.title}", "", *table(heads, drawn.rows, ">"), ""]
            for curve, label, why in drawn.verdicts():
                verdict = curve.verdict()
                lines.append(f"- {label}: {f'**{verdict}**' if why else verdict}")
                lines += [f"  {why}"] if why else []
    return "\n".join([*lines, ""])


def _plot(section: Section, drawn: Drawn) -> Plot:
    """On logarithmic axes, and beside it what is linear."""
    from perf.report.plots.drawing import Mark, Scale, Stroke, draw

    strokes = []
    for at, curve in enumerate(drawn.curves):
        marks = [
            Mark(n, middle, y_reach=(middle - min(values), max(values) - middle))
            for n, values in curve.values.items()
            if (middle := curve.middle(n)) > 0
        ]
        strokes += [Stroke(marks, at)] if marks else []
    first = drawn.curves[0]
    x = Scale(section.axis.unit, lambda value: f"{value:,.0f}", at_values=True, log_from=1.0)
    y = Scale("", lambda value: first.text(value, is_round=True), log_from=1.0)
    verdicts = [f"{label} {curve.verdict()}" for curve, label, _ in drawn.verdicts()]
    return Plot(
        draw(f"{section.axis.name}-{section.charts.index(drawn)}", strokes, x, y, linear="--"),
        drawn.chart.title,
        f"{'. '.join(verdicts)}.",
        list(enumerate(map(drawn.label, drawn.curves))),
        strokes=[("--", "linear")],
    )
