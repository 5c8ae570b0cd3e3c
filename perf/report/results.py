"""Reads a run to be shown: its folder, or the report.json of one. Writes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from generator.errors import PerfError
from perf.report import schema
from perf.report.schema import Measurement, Run
from perf.report.typed import made

REPORT_FILE = "report.json"


@dataclass(frozen=True)
class Results:
    """A run, what it measured, and a line for whatever of it could not be read."""

    run: Run
    measurements: Sequence[Measurement]
    problems: Sequence[str] = ()

    def document(self) -> dict[str, Any]:
        """What report.json holds; report.schema.json describes it."""
        lines = [asdict(each) for each in self.measurements]
        return {**asdict(self.run), "measurements": lines, "problems": list(self.problems)}


def read_results(path: Path) -> Results:
    """The run in a folder, or in a report.json. Raises PerfError."""
    try:
        return _of_folder(path) if path.is_dir() else _of_document(path)
    except FileNotFoundError:
        raise PerfError(_not_found(path)) from None
    except OSError as error:
        raise PerfError(f"{path}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise PerfError(str(error)) from None


def _of_folder(folder: Path) -> Results:
    run = schema.read_run(folder)
    measurements, problems = schema.readable_measurements(folder)
    return Results(run, measurements, problems)


def _of_document(file: Path) -> Results:
    try:
        values = schema.read_json(file)
        run = schema.run_of(values)
        lines = values.get("measurements")
        if not isinstance(lines, list):
            raise ValueError("not a report.json: no measurements")
        found = [made(Measurement, each, f"measurements[{at}]") for at, each in enumerate(lines)]
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None
    return Results(run, found, tuple(map(str, values.get("problems") or ())))


def _not_found(path: Path) -> str:
    expected = f"expected a folder with {schema.RUN_FILE}, as `hf-triton perf sweep` makes"
    if path.is_dir():
        return f"{path}: not a run: it has no {schema.RUN_FILE}; {expected}"
    return f"{path}: not found; {expected}, or the {REPORT_FILE} of one"
