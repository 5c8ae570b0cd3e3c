"""Writes what people and programs read of a run beside it: report.json, run.csv, run.md, run.html.

All of it is made from the run's own two files (schema.py) and nothing else, so it can be made again
at any time, and the same run gives the same bytes.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from perf.report.schema import read_measurements, read_run

REPORT_FILE = "report.json"


def write_renderings(folder: Path) -> None:
    """Writes every rendering of the run in ``folder``, each whole or not at all.

    Raises OSError, ValueError (not a run, or of a newer schema).
    """
    measurements = [asdict(each) for each in read_measurements(folder)]
    document = {**asdict(read_run(folder)), "measurements": measurements}
    temporary = folder / f".{REPORT_FILE}.new"
    temporary.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    temporary.replace(folder / REPORT_FILE)
