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
from perf.report.best import best
from perf.report.metrics import Metric, shown, shown_metrics
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
_NAMES = ("target", "endpoint", "concurrency", "request_rate")


@dataclass(frozen=True)
class Table:
    """A row for each load; ``everywhere`` says what all loads have in common."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    num_names: int  # number of columns that name the load
    everywhere: str = ""

    def markdown(self) -> list[str]:
        return markdown.table(self.heads, self.rows, "<" * self.num_names)


def write_renderings(folder: Path) -> None:
    """Writes every rendering of the run in ``folder``, each whole or not at all.

    Raises PerfError (not a run, or of a newer schema), OSError.
    """
    results = read_results(folder)
    write_text(folder / MARKDOWN_FILE, to_markdown(results))
    write_text(folder / PAGE_FILE, to_html(results))


def to_markdown(results: Results) -> str:
    """The best loads, a table to decide by, and how the run was made; all texts are escaped."""
    found = points(results.measurements)
    lines = [f"# {markdown.escaped(results.run.name)}", ""]
    lines += [*(f"- {markdown.escaped(each)}" for each in best(found)), ""]
    if found:
        of_all = table(found)
        lines += [*of_all.markdown(), "", markdown.escaped(of_all.everywhere), ""]
    for name, text in (*_problems(found), *facts(results.run)):
        said = markdown.code(text) if name == "command" else markdown.escaped(text[:1000])
        lines.append(f"- {name}: {said}")
    return "\n".join(lines) + "\n"


def to_html(results: Results) -> str:
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
    return environment.get_template("page.html.j2").render(
        title=results.run.name,
        best=list(best(found)),
        problems=list(_problems(found)),
        plot=plot(found),
        table=table(found) if found else None,
        facts=list(facts(results.run)),
    )


def table(found: Sequence[Point]) -> Table:
    """Medians of the repeats, in brackets minimum and maximum, of what any load has."""
    loads = [point.load for point in found]
    names = varying(loads) or [n for n in _NAMES if dimensions(loads[0])[n]]
    metrics = shown_metrics(each for point in found for each in point.repeats)
    had = [metric for metric in metrics if any(point.values(metric) for point in found)]
    remarks = [["; ".join(point.remarks())] for point in found]
    has_remarks = any(each != [""] for each in remarks)
    rows = [
        [
            *(number(dimensions(point.load).get(name)) for name in names),
            *(_cell(point, metric) for metric in had),
            *(remark if has_remarks else []),
        ]
        for point, remark in zip(found, remarks, strict=True)
    ]
    heads = [*map(word, names), *(metric.heading for metric in had)]
    others = [name for name in dimensions(loads[0]) if name not in names]
    shared = words_for(loads[0], [n for n in others if dimensions(loads[0])[n] != 1])
    notes = [f"Everywhere: {shared}."] if shared else []
    if any(len(point.repeats) > 1 for point in found):
        notes.append("Figures are medians of the repeats, in brackets the least and the most.")
    return Table([*heads, *["remarks"] * has_remarks], rows, len(names), " ".join(notes))


def facts(run: Run) -> Iterator[tuple[str, str]]:
    """When, by which command, with which software, and where the run was made."""
    told = {
        "measured": run.created,
        "command": run.command,
        "commit": run.commit,
        "hardware": markdown.joined(run.hardware),
        "versions": markdown.joined(run.versions),
        "scenario": json.dumps(run.scenario, ensure_ascii=False) if run.scenario else "",
    }
    yield from ((name, text) for name, text in told.items() if text)
    yield from (("note", note) for note in run.notes)


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
