"""Writes what people and programs read of a run beside it: report.json, run.csv, run.md, run.html.

All of it is made from the run's own two files (schema.py) and nothing else, so it can be made again
at any time, and the same run gives the same bytes.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from itertools import chain
from pathlib import Path

from perf.report.best import Bounds
from perf.report.metrics import BETWEEN_TOKENS, FIRST_TOKEN, LATENCY
from perf.report.page import to_html
from perf.report.results import REPORT_FILE, Results, read_results
from perf.report.run_markdown import to_markdown
from perf.report.schema import Load, Measurement, Value
from perf.report.written import write_text

_OF_LOAD = tuple(each.name for each in fields(Load) if each.name != "settings")
_OF_MEASUREMENT = (
    *("repeat", "started", "duration_s", "num_requests", "num_errors", "requests_per_s"),
    *("output_tokens_per_s", "roofline_share", "stable"),
)
_TIMES = {
    metric.name: metric
    for metric in chain(LATENCY.values(), FIRST_TOKEN.values(), BETWEEN_TOKENS.values())
}
_TEXTS = ("first_error", "command")
COLUMNS = (*_OF_LOAD, *_OF_MEASUREMENT, *_TIMES, *_TEXTS)
# OWASP, CSV injection: what a spreadsheet evaluates begins with one of these.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")  # noqa: RUF001

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
    """Writes every rendering of results that were read already. Raises OSError."""
    write_text(folder / REPORT_FILE, json.dumps(results.document(), indent=2) + "\n")
    write_text(folder / CSV_FILE, to_csv(results.measurements))
    write_text(folder / MARKDOWN_FILE, to_markdown(results, bounds))
    write_text(folder / PAGE_FILE, to_html(results, bounds))


def to_csv(measurements: Sequence[Measurement]) -> str:
    """Quoted where needed, by RFC 4180 but for the line ends, which are one character.

    The columns: those of COLUMNS, always and in that order; then ``setting.NAME``,
    ``server.NAME`` and ``machine.NAME`` for each name that any measurement has, sorted. A cell is
    empty where nothing was measured. Texts that a spreadsheet would take for a formula begin with
    an apostrophe.
    """
    rows = [_row(each) for each in measurements]
    more = sorted({name for row in rows for name in row} - set(COLUMNS), key=_place)
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow([_cell(name) for name in (*COLUMNS, *more)])
    writer.writerows([_cell(row.get(name)) for name in (*COLUMNS, *more)] for row in rows)
    return written.getvalue()


def _row(measurement: Measurement) -> Mapping[str, Value]:
    load = measurement.load
    more = {"setting": load.settings, "server": measurement.server, "machine": measurement.machine}
    return {
        **{name: getattr(load, name) for name in _OF_LOAD},
        **{name: getattr(measurement, name) for name in (*_OF_MEASUREMENT, *_TEXTS)},
        **{name: metric.value(measurement) for name, metric in _TIMES.items()},
        **{f"{place}.{name}": value for place, of in more.items() for name, value in of.items()},
    }


def _place(name: str) -> tuple[int, str]:
    return ("setting", "server", "machine").index(name.partition(".")[0]), name


def _cell(value: Value) -> Value:
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str):
        return value
    text = value.replace("\0", "")
    if not text.lstrip(" ").startswith(_FORMULA):
        return text
    try:
        float(text)
    except ValueError:
        return f"'{text}"
    return text
