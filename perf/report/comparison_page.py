"""A comparison as one HTML page, as page.py makes one of a run; and all files of a comparison."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from perf.report.comparison import Comparison, load_words
from perf.report.comparison_text import (
    NOT_JUDGED,
    RULE,
    name_of,
    ratio_words,
    to_json,
    to_markdown,
    warnings,
)
from perf.report.metrics import shown
from perf.report.page import render
from perf.report.panels import COMPARES_RUNS, MAX_PANELS, RUN, panels
from perf.report.points import points
from perf.report.results import Results
from perf.report.schema import Measurement
from perf.report.sections import drawn_sections
from perf.report.written import write_text

FILES = ("compare.json", "compare.md", "compare.html")
_CHARTS = ("trade-off", "throughput", "latency", "ttft", "itl", "tokens")


def write_comparison(folder: Path, comparison: Comparison) -> None:
    """Makes the folder and its three files. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / FILES[0], json.dumps(to_json(comparison), indent=2) + "\n")
    write_text(folder / FILES[1], to_markdown(comparison))
    write_text(folder / FILES[2], to_html(comparison))


def to_html(comparison: Comparison) -> str:
    """The whole page; the same runs give the same text."""
    both = [*_marked(comparison.a, "A"), *_marked(comparison.b, "B")]
    drawn = panels(COMPARES_RUNS, points(both))
    sections, no_plots = drawn_sections(both, drawn[:MAX_PANELS], _CHARTS)
    return render(
        "comparison.html.j2",
        comparison=comparison,
        names={"A": name_of(comparison.a), "B": name_of(comparison.b)},
        warnings=list(warnings(comparison)),
        rule=RULE if comparison.is_judged else NOT_JUDGED,
        sections=sections,
        no_plots=no_plots,
        panels_left_out=len(drawn[MAX_PANELS:]),
        ratio_words=ratio_words,
        load_words=load_words,
        shown=shown,
    )


def _marked(results: Results, name: str) -> Iterator[Measurement]:
    """The measurements, with the run that they are of as a setting."""
    for each in results.measurements:
        settings = {**each.load.settings, RUN[1]: name}
        yield replace(each, load=replace(each.load, settings=settings))
