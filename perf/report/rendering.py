"""Writes a run's reports beside it: run.md, and run.html, one page with a plot that needs no
network. Both depend on report.json (schema.py) alone, so they can be rewritten at any time with the
same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import jinja2

from perf.report import markdown
from perf.report.best import Bounds, best
from perf.report.metrics import Metric, every_metric, main_metrics, shown
from perf.report.plot import plot
from perf.report.points import (
    Point,
    dimensions,
    load_words,
    number,
    points,
    varying,
    word,
    words_for,
)
from perf.report.schema import Results, Run, read_results, write_text

MARKDOWN_FILE, PAGE_FILE = "run.md", "run.html"
RENDERINGS = (PAGE_FILE, MARKDOWN_FILE)
_NAMES = ("target", "endpoint", "concurrency", "request_rate")
COMPARES_TARGETS = ("baselines",)  # kinds of runs in which every target does the same work
NO_BOUNDS = Bounds()
_TEMPLATE = "page.html.j2"


@dataclass(frozen=True)
class Table:
    """A row for each load; ``everywhere`` says what all loads have in common."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    num_names: int  # number of columns that name the load
    everywhere: str = ""


def write_renderings(folder: Path, bounds: Bounds = NO_BOUNDS) -> None:
    """Writes every rendering of the run in ``folder``, each whole or not at all.

    Raises PerfError (not a run, or of a newer schema), OSError.
    """
    results = read_results(folder)
    write_text(folder / MARKDOWN_FILE, to_markdown(results, bounds))
    write_text(folder / PAGE_FILE, to_html(results, bounds))


def to_markdown(results: Results, bounds: Bounds = NO_BOUNDS) -> str:
    """The best loads, a table to decide by, and how the run was made; all texts are escaped."""
    found = points(results.measurements)
    lines = [f"# {markdown.escaped(results.run.name)}", ""]
    lines += [*(f"- {markdown.escaped(each)}" for each in _best(results, found, bounds)), ""]
    if found:
        shown_table = table(found, main_metrics(results.measurements))
        lines += [*markdown.table(shown_table.heads, shown_table.rows, "<" * shown_table.num_names)]
        lines += ["", f"{markdown.escaped(shown_table.everywhere)}", ""]
    else:
        lines += ["No measurements.", ""]
    for name, text in (*_problems(found), *facts(results.run)):
        lines.append(f"- {name}: {markdown.code(text) if name == 'command' else _said(text)}")
    return "\n".join(lines) + "\n"


def to_html(results: Results, bounds: Bounds = NO_BOUNDS) -> str:
    """The whole page; equal results give equal text."""
    found = points(results.measurements)
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        undefined=jinja2.StrictUndefined,
        autoescape=True,  # escapes all texts; the page runs no script
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template(_TEMPLATE).render(
        title=results.run.name,
        said=list(_best(results, found, bounds)),
        warnings=list(_problems(found)),
        plot=plot(found),
        tables={"All numbers": table(found, every_metric(results.measurements))} if found else {},
        facts={"How it came about": list(facts(results.run))},
    )


def table(found: Sequence[Point], metrics: Sequence[Metric]) -> Table:
    """Medians of the repeats, in brackets minimum and maximum, for the ``metrics`` that any load
    has.
    """
    loads = [point.load for point in found]
    names = varying(loads) or [n for n in _NAMES if dimensions(loads[0])[n]]
    had = [metric for metric in metrics if any(point.values(metric) for point in found)]
    has_remarks = any(point.remarks() for point in found)
    heads = [*map(word, names), *(metric.heading for metric in had)]
    rows = [
        [
            *(number(dimensions(point.load).get(name)) for name in names),
            *(_cell(point, metric) for metric in had),
            *(["; ".join(point.remarks())] if has_remarks else []),
        ]
        for point in found
    ]
    others = [name for name in dimensions(loads[0]) if name not in names]
    shared = words_for(loads[0], [n for n in others if dimensions(loads[0])[n] != 1])
    notes = [f"Everywhere: {shared}."] if shared else []
    if any(len(point.repeats) > 1 for point in found):
        notes.append("Figures are medians of the repeats, in brackets the least and the most.")
    heads += ["remarks"] if has_remarks else []
    return Table(heads, rows, len(names), " ".join(notes))


def facts(run: Run) -> Iterator[tuple[str, str]]:
    """When, by which command, with which software, and where the run was made."""
    told = {
        "measured": run.created,
        "command": run.command,
        "commit": run.commit,
        "hardware": markdown.joined(run.hardware),
        "versions": markdown.joined(run.versions),
        "roofline": markdown.joined(run.roofline),
        "scenario": json.dumps(run.scenario, ensure_ascii=False) if run.scenario else "",
    }
    yield from ((name, text) for name, text in told.items() if text)
    yield from (("note", note) for note in run.notes)


def _said(text: str) -> str:
    return markdown.escaped(text[:1000])


def _best(results: Results, found: Sequence[Point], bounds: Bounds) -> Iterator[str]:
    return best(found, bounds, compares_targets=results.run.kind in COMPARES_TARGETS)


def _problems(found: Sequence[Point]) -> Iterator[tuple[str, str]]:
    loads = [point.load for point in found]
    for point in found:
        errors = [each.first_error for each in point.repeats if each.first_error]
        if errors:
            where = load_words(point.load, loads if len(loads) > 1 else [])
            yield "error", f"{where}: {errors[0][:500]}"


def _cell(point: Point, metric: Metric) -> str:
    values = point.values(metric)
    least, most = shown(min(values, default=None)), shown(max(values, default=None))
    spread = f" ({least} to {most})" if metric.lower_is_better is not None and least != most else ""
    return shown(point.middle(metric)) + spread
