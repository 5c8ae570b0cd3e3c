"""Writes what people and programs read of a run beside it: report.json, run.csv, run.md, run.html.

All of it is made from the run's own two files (schema.py) and nothing else, so it can be made again
at any time, and the same run gives the same bytes.
"""

from __future__ import annotations

import json
from pathlib import Path

from perf.report.best import Bounds
from perf.report.csv_table import to_csv
from perf.report.page import to_html
from perf.report.results import REPORT_FILE, Results, read_results
from perf.report.run_markdown import to_markdown
from perf.report.written import write_text

CSV_FILE, MARKDOWN_FILE, PAGE_FILE = "run.csv", "run.md", "run.html"
RENDERINGS = (PAGE_FILE, MARKDOWN_FILE, CSV_FILE, REPORT_FILE)
NO_BOUNDS = Bounds()
__all__ = ("RENDERINGS", "REPORT_FILE", "write_renderings", "write_results")


def write_renderings(folder: Path, bounds: Bounds = NO_BOUNDS) -> None:
    """Writes every rendering of the run in ``folder``, each whole or not at all.

    Raises PerfError (not a run, or of a newer schema), OSError.
    """
    write_results(folder, read_results(folder), bounds)


def write_results(folder: Path, results: Results, bounds: Bounds = NO_BOUNDS) -> None:
    """The same of results that were read already. Raises OSError."""
    write_text(folder / REPORT_FILE, json.dumps(results.document(), indent=2) + "\n")
    write_text(folder / CSV_FILE, to_csv(results.measurements))
    write_text(folder / MARKDOWN_FILE, to_markdown(results, bounds))
    write_text(folder / PAGE_FILE, to_html(results, bounds))
