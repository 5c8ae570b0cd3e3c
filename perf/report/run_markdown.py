"""A run as Markdown: what was best, a table to decide by, and how it came about."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from perf.report.best import Best, Bounds, Winner, best
from perf.report.head import circumstances
from perf.report.markdown import escaped, joined
from perf.report.markdown import table as markdown_table
from perf.report.points import Point, points
from perf.report.results import Results
from perf.report.tables import Row, Table, load_words, main_metrics, table


def to_markdown(results: Results, bounds: Bounds) -> str:
    """The whole text; whatever came from outside is escaped."""
    found = points(results.measurements)
    lines = [f"# {escaped(title(results))}", ""]
    if found:
        metrics = main_metrics(results.measurements)
        lines += [*_best_lines(best(results.run.kind, found, bounds)), ""]
        lines += [*table_lines(table(found, metrics)), ""]
    else:
        lines += ["No measurements.", ""]
    lines += [f"- {line}" for line in _doubts(results, found)]
    lines += [*circumstances(results.run), *(f"- {line}" for line in _notes(results))]
    return "\n".join(lines) + "\n"


def title(results: Results) -> str:
    """The run's own title, or what it was."""
    return results.run.title or f"{results.run.kind} of {results.run.created}"


def table_lines(shown: Table) -> Iterator[str]:
    """The rows; figures to the right."""
    heads = [*shown.names, *(metric.heading for metric in shown.metrics), "remarks"]
    align = "<" * len(shown.names) + ">" * len(shown.metrics) + "<"
    rows = [
        [*map(escaped, row.name), *_figures(row), escaped("; ".join(row.remarks))]
        for row in shown.rows
    ]
    yield from markdown_table([*map(escaped, heads)], rows, align)
    if shown.constants:
        yield ""
        yield f"Everywhere: {escaped(', '.join(shown.constants))}."


def _figures(row: Row) -> Iterator[str]:
    return (cell.text + (f" ({cell.spread})" if cell.spread else "") for cell in row.figures)


def _best_lines(found: Sequence[Best]) -> Iterator[str]:
    for group in found:
        if group.work:
            yield f"**{escaped(group.work)}**"
            yield ""
        yield from (f"- {escaped(sentence(winner))}" for winner in group.winners)
        yield ""


def sentence(winner: Winner) -> str:
    """Such as ``Highest throughput: 72 requests/s with concurrency 16 (latency p99 120 ms)``."""
    text = winner.title + (f": {winner.figure}" if winner.figure else "")
    text += f" with {winner.load}" if winner.load else ""
    more = "; ".join(filter(None, (winner.beside, winner.doubt)))
    return text + (f" ({more})" if more else "")


def _doubts(results: Results, found: Sequence[Point]) -> Iterator[str]:
    for point in found:
        errors = [each.first_error for each in point.repeats if each.first_error]
        if errors:
            yield f"**error** at {escaped(load_words(point, found))}: {escaped(errors[0][:500])}"
    yield from (f"**problem**: {escaped(problem)}" for problem in results.problems)


def _notes(results: Results) -> Iterator[str]:
    if results.run.roofline:
        yield f"roofline: {escaped(joined(results.run.roofline))}"
    yield from map(escaped, results.run.notes)
    if any(len(point.repeats) > 1 for point in points(results.measurements)):
        yield "figures: median of the repeats, and in brackets the least and the most"
