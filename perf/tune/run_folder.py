"""The folder of a search: made for one question, taken up again by the same one."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from generator.errors import PerfError
from perf.in_use import in_use
from perf.report.head import here
from perf.report.schema import RUN_FILE, Load, Run, read_measurements, read_run, write_run

RESULTS_FOLDER = Path("perf-results")


def folder_of(model: str, question: Mapping[str, Any], chosen: Path | None) -> Path:
    """The same for the same question, so that the same command goes on."""
    digest = hashlib.sha256(json.dumps(question, sort_keys=True).encode()).hexdigest()
    return chosen or RESULTS_FOLDER / f"tune-{model}-{digest[:8]}"


@contextlib.contextmanager
def opened(folder: Path, question: Mapping[str, Any], command: str) -> Iterator[None]:
    """Makes the folder, or takes it up. Raises PerfError where it is another search's or in use."""
    with in_use(folder):
        _take_up(folder, question, command)
        yield


def num_measured(folder: Path, load: Load) -> int:
    """How often a load was measured already."""
    return sum(each.load == load for each in read_measurements(folder))


def _take_up(folder: Path, question: Mapping[str, Any], command: str) -> None:
    if not (folder / RUN_FILE).exists():
        write_run(folder, _new_run(question, command))
        return
    try:
        run = read_run(folder)
    except ValueError as error:
        raise PerfError(str(error)) from None
    before, asked = dict(run.scenario), json.loads(json.dumps(question))
    if run.kind != "tune" or before != asked:
        keys = [key for key in {*before, *asked} if before.get(key) != asked.get(key)]
        raise PerfError(
            f"{folder} holds another search (different: {', '.join(sorted(keys)) or 'its kind'}); "
            "choose another --output"
        )


def _new_run(question: Mapping[str, Any], command: str) -> Run:
    return Run(
        kind="tune",
        **here(command).origin(),
        title=f"Settings for {question['model']}: {question['goal']}",
        scenario=question,
    )
