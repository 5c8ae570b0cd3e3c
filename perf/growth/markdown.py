"""A run as Markdown: a table for each chart, and how each of its curves grows."""

from __future__ import annotations

from collections.abc import Iterator

from perf.growth.curves import Drawn, Section
from perf.report.schema import Run


def to_markdown(run: Run, sections: list[Section]) -> str:
    """The whole document."""
    lines = ["# How time and memory grow", "", *_facts(run)]
    for section in sections:
        lines += ["", f"## {section.axis.title}", "", section.axis.note, *_errors(section)]
        for drawn in section.charts:
            lines += ["", f"### {drawn.chart.title}", "", *_table(drawn), "", *_growth(drawn)]
    return "\n".join([*lines, ""])


def _facts(run: Run) -> Iterator[str]:
    cpu, cores = run.hardware.get("cpu", ""), run.hardware.get("cores", "")
    yield f"{run.created}, commit {run.commit}: {cpu}, {cores} cores, load average before "
    yield f"{run.hardware.get('load_average', '?')}. `{run.command}`"
    if run.notes:
        yield ""
        yield from (f"- {note}" for note in run.notes)


def _errors(section: Section) -> Iterator[str]:
    if section.num_errors:
        yield ""
        yield f"**{section.num_errors} requests failed**, the first with: {section.first_error}"


def _table(drawn: Drawn) -> Iterator[str]:
    """A row for each point, a column for each curve."""
    labels = [drawn.label(curve) for curve in drawn.curves]
    yield f"| {drawn.curves[0].axis.unit} | {' | '.join(labels)} |"
    yield "|--:|" + "--:|" * len(labels)
    for n in drawn.points:
        yield f"| {n:,} | {' | '.join(curve.text(n) for curve in drawn.curves)} |"


def _growth(drawn: Drawn) -> Iterator[str]:
    for curve in drawn.curves:
        verdict = curve.verdict()
        yield f"- {drawn.label(curve)}: {f'**{verdict}**' if curve.is_worse else verdict}"
        if curve.is_worse:
            yield f"  {drawn.explanation(curve)}"
