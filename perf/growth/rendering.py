"""Writes what people read of a run beside it: growth.md, growth.html, run.csv and report.json."""

from __future__ import annotations

import json
from pathlib import Path

from perf.growth.curves import Section, sections
from perf.growth.markdown import to_markdown
from perf.report.csv_table import to_csv
from perf.report.results import REPORT_FILE, read_results
from perf.report.written import write_text

MARKDOWN_FILE, PAGE_FILE, CSV_FILE = "growth.md", "growth.html", "run.csv"


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
    from perf.growth.page import to_html

    write_text(folder / PAGE_FILE, to_html(results.run, found))
    return found
