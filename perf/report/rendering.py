"""Writes a run's reports beside it: run.md, and run.html, a page with a plot that needs no network.
They depend on report.json alone: writing them again gives the same bytes.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from perf.report.points import (
    FIRST_TOKEN,
    LATENCY,
    USE,
    WORK,
    Metric,
    Point,
    dimensions,
    grouped,
    judged_metrics,
    load_words,
    number,
    points,
    shown,
    throughput_of,
    varying,
    word,
    words_for,
)
from perf.report.schema import Run, read_run, write_text

MARKDOWN_FILE, PAGE_FILE = "run.md", "run.html"
_NAMES = ("target", "endpoint", "concurrency", "request_rate")
_NEAR = 2  # times the lowest p99: hardly noticeable
MAX_LINES = 8  # more lines can't be told apart: the ones with the highest throughput are drawn
_LOADS = ("concurrency", "request_rate")
_COLOURS = "petroff10"  # for all kinds of colour vision
_MARKERS = "os^DvPX*"
_SPECIAL = re.compile(r"([\\`*\[\]<>|#~]|(?<!\w)_|_(?!\w))")  # max_num_seqs stays as it is
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "hf-triton",  # the same run gives the same bytes
    "text.parse_math": False,
    "axes.grid": True,
}


def write_renderings(folder: Path) -> None:
    """Writes each rendering of a run whole or not at all. Raises PerfError (not a run), OSError."""
    run = read_run(folder)
    write_text(folder / MARKDOWN_FILE, to_markdown(run))
    write_text(folder / PAGE_FILE, to_html(run))


def to_markdown(run: Run) -> str:
    found = points(run.measurements)
    lines = [f"# {escaped(run.name)}", ""]
    lines += [*(f"- {escaped(each)}" for each in best(found)), ""]
    if found:
        of_all = table(found)
        lines += [*of_all.markdown(), "", escaped(of_all.everywhere), ""]
    for name, text in (*_errors(found), *facts(run)):
        lines.append(f"- {name}: {escaped(text[:1000])}")
    return "\n".join(lines) + "\n"


def to_html(run: Run) -> str:
    found = points(run.measurements)
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        undefined=jinja2.StrictUndefined,
        autoescape=True,  # escapes all texts; the page runs no script
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template("page.html.j2").render(
        title=run.name,
        best=list(best(found)),
        problems=list(_errors(found)),
        plot=plot(found),
        table=table(found) if found else None,
        facts=list(facts(run)),
    )


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
        title = f"numbers: concurrent requests, or requests/s{left_out}"
        # Matplotlib's search for the best place warns where it takes a second.
        axes.legend(loc="upper left", fontsize=8, title=title)
        written = io.StringIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(written, format="svg", metadata=nothing)
    return Markup(written.getvalue()[written.getvalue().index("<svg") :])


def best(found: Sequence[Point]) -> Iterator[str]:
    if not found:
        yield "nothing was measured"
    differing = varying([point.load for point in found])
    keys = [key for key in ("target", *WORK) if key in differing]
    for words, part in grouped(found, lambda point: words_for(point.load, keys)).items():
        yield from (f"{words}: {said}" if words else said for said in _winners(part))


def _winners(found: Sequence[Point]) -> Iterator[str]:
    rate, latency = throughput_of(m for p in found for m in p.repeats), LATENCY["p99"]
    first = FIRST_TOKEN["p99"]
    sound = [point for point in found if not point.num_errors and point.middle(latency)]
    if not sound:
        yield "no load was answered without errors"
        return
    lowest = min(sound, key=lambda point: point.middle(latency) or 0.0)
    bound = _NEAR * (lowest.middle(latency) or 0.0)
    near = [point for point in sound if (point.middle(latency) or 0.0) <= bound]
    within = f"highest throughput with at most {_NEAR} times the lowest latency p99, "
    winners = {
        "highest throughput": max(sound, key=lambda point: point.middle(rate) or 0.0),
        f"{within}{shown(bound)} ms": max(near, key=lambda point: point.middle(rate) or 0.0),
        "lowest latency p99": lowest,
    }
    if streams := [point for point in sound if point.middle(first)]:
        winners["lowest first token p99"] = min(streams, key=lambda p: p.middle(first) or 0.0)
    for title, point in winners.items():
        figures = f"{shown(point.middle(rate))} {rate.unit}"
        for metric in (latency, first):
            value = point.middle(metric)
            figures += f", {metric.label} {shown(value)} ms" if value else ""
        where = load_words(point.load, [each.load for each in found])
        yield "; ".join([f"{title}: {figures} with {where}", *point.remarks()])


@dataclass(frozen=True)
class Table:
    """A row for each load; ``everywhere`` says what all loads have in common."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    num_names: int  # number of columns that name the load
    everywhere: str

    def markdown(self) -> list[str]:
        return markdown_table(self.heads, self.rows, "<" * self.num_names)


def table(found: Sequence[Point]) -> Table:
    """Medians of the repeats, in brackets minimum and maximum, of what any load has."""
    loads = [point.load for point in found]
    names = varying(loads) or [n for n in _NAMES if dimensions(loads[0])[n]]
    metrics = [*judged_metrics(each for point in found for each in point.repeats), *USE]
    had = [metric for metric in metrics if any(point.values(metric) for point in found)]
    remarks = ["; ".join(point.remarks()) for point in found]
    rows = [
        [
            *(number(dimensions(point.load).get(name)) for name in names),
            *(_cell(point, metric) for metric in had),
            *([remark] if any(remarks) else []),
        ]
        for point, remark in zip(found, remarks, strict=True)
    ]
    heads = [*map(word, names), *(metric.heading for metric in had)]
    others = [n for n, v in dimensions(loads[0]).items() if n not in names and v != 1]
    shared = words_for(loads[0], others)
    notes = [f"Everywhere: {shared}."] if shared else []
    if any(len(point.repeats) > 1 for point in found):
        notes.append("Figures are medians of the repeats, in brackets the least and the most.")
    return Table([*heads, *["remarks"] * any(remarks)], rows, len(names), " ".join(notes))


def _cell(point: Point, metric: Metric) -> str:
    values = point.values(metric)
    least, most = shown(min(values, default=None)), shown(max(values, default=None))
    spread = f" ({least} to {most})" if metric.lower_is_better is not None and least != most else ""
    return shown(point.middle(metric)) + spread


def facts(run: Run) -> Iterator[tuple[str, str]]:
    told = {
        "measured": run.created,
        "command": run.command,
        "commit": run.commit,
        "hardware": _joined(run.hardware),
        "versions": _joined(run.versions),
        "scenario": json.dumps(run.scenario, ensure_ascii=False) if run.scenario else "",
    }
    yield from ((name, text) for name, text in told.items() if text)
    yield from (("note", note) for note in run.notes)


def _joined(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items() if value not in (None, ""))


def _errors(found: Sequence[Point]) -> Iterator[tuple[str, str]]:
    loads = [point.load for point in found]
    for point in found:
        errors = [each.first_error for each in point.repeats if each.first_error]
        if errors:
            where = load_words(point.load, loads if len(loads) > 1 else [])
            yield "error", f"{where}: {errors[0][:500]}"


def markdown_table(
    heads: Sequence[str], rows: Iterable[Sequence[object]], align: str = "<"
) -> list[str]:
    """Escapes every cell; ``align`` has ``<`` or ``>`` for each column, further ones go right."""
    rule = "|".join({"<": ":--", ">": "--:"}[side] for side in align.ljust(len(heads), ">"))
    lines = ["| " + " | ".join(map(escaped, row)) + " |" for row in (heads, *rows)]
    return [lines[0], f"|{rule}|", *lines[1:]]


def escaped(text: object) -> str:
    """Joins lines and drops control characters that a terminal would interpret."""
    words = " ".join(str(text).split())
    plain = (each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in words)
    return _SPECIAL.sub(r"\\\1", "".join(plain))
