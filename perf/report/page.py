"""A run as one HTML page: no script, no network, no other file. Whatever came from outside is
escaped by Jinja, and the page's own policy would let no script run.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2

from perf.report.best import Bounds, best
from perf.report.metrics import LATENCY, Metric, listed
from perf.report.plots.charts import NO_PLOTS, sections
from perf.report.plots.panels import MAX_LINES, MAX_PANELS, panels
from perf.report.points import Point, number_told, points
from perf.report.results import Results
from perf.report.run_markdown import title
from perf.report.tables import Table, every_metric, load_words, table

_FOLDER = Path(__file__).parent
_MAX_GROUPS = 6  # of what was best, before the rest is folded away


def to_html(results: Results, bounds: Bounds) -> str:
    """The whole page; the same results give the same text."""
    found = points(results.measurements)
    drawn = panels(results.run.kind, found)
    groups = best(results.run.kind, found, bounds)
    return render(
        _FOLDER / "page.html.j2",
        results=results,
        run=results.run,
        title=title(results),
        groups=groups[:_MAX_GROUPS],
        more_groups=groups[_MAX_GROUPS:],
        sections=sections(results.measurements, drawn[:MAX_PANELS]),
        no_plots=NO_PLOTS,
        panels_left_out=len(drawn[MAX_PANELS:]),
        max_lines=MAX_LINES,
        table=table(found, every_metric(results.measurements)),
        points=found,
        errors=_errors(found),
        repeats=max((len(point.repeats) for point in found), default=0),
        scenario=json.dumps(results.run.scenario, indent=2, ensure_ascii=False),
    )


def render(template: Path, **values: Any) -> str:
    """The text of a template, which may use those beside this module; every text is escaped."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([template.parent, _FOLDER]),
        undefined=jinja2.StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(told=number_told, named=lambda name: listed("machine", name).heading)
    environment.globals.update(head_groups=head_groups)
    return environment.get_template(template.name).render(**values)


def head_groups(shown_table: Table) -> list[tuple[str, list[Metric]]]:
    """The columns of figures, those of one kind of time under one heading."""
    groups: list[tuple[str, list[Metric]]] = []
    for metric in shown_table.metrics:
        kind, _, which = metric.label.rpartition(" ")
        head = f"{kind} ({metric.unit})" if which in LATENCY else ""
        if groups and head and groups[-1][0] == head:
            groups[-1][1].append(metric)
        else:
            groups.append((head, [metric]))
    return groups


def _errors(found: Sequence[Point]) -> list[tuple[str, str]]:
    """The load and the first error of each point that had any."""
    firsts = [
        (point, next((each.first_error for each in point.repeats if each.first_error), None))
        for point in found
    ]
    return [(load_words(point, found), error[:2000]) for point, error in firsts if error]
