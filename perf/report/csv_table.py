"""A run as CSV: one row for each measurement.

The columns: those of COLUMNS, always and in that order; then ``setting.NAME``, ``server.NAME`` and
``machine.NAME`` for each name that any measurement has, sorted. A cell is empty where nothing was
measured. Texts that a spreadsheet would take for a formula begin with an apostrophe.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import fields
from itertools import chain

from perf.report.metrics import BETWEEN_TOKENS, FIRST_TOKEN, LATENCY
from perf.report.schema import Load, Measurement, Value

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


def to_csv(measurements: Sequence[Measurement]) -> str:
    """Quoted where needed, by RFC 4180 but for the line ends, which are one character."""
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
