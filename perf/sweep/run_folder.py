"""The folder of a sweep: begun, gone on with, or begun again. What is measured is never lost to it:
a folder of another run is refused.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from generator.errors import PerfError
from perf.report.rendering import write_renderings
from perf.report.schema import (
    MEASUREMENTS_FILE,
    RUN_FILE,
    Measurement,
    Run,
    append,
    read_measurements,
    read_run,
    write_run,
)
from perf.sweep.plan import key_of

KIND = "sweep"


def begin(folder: Path, run: Run, files: Mapping[str, str], fresh: bool) -> set[str]:
    """Writes the run and its input files; the keys of what is measured already.

    Raises PerfError where the folder holds another run, or can't be written.
    """
    with disk(folder):
        if fresh:
            _clear(folder)
        done = _go_on(folder, run) if (folder / RUN_FILE).exists() else set()
        if not done:
            write_run(folder, run)
    write_files(folder, files)
    return done


def write_files(folder: Path, files: Mapping[str, str]) -> None:
    """What is sent. Raises PerfError."""
    with disk(folder):
        for name, content in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, encoding="utf-8")


def render(folder: Path) -> None:
    """Writes the reports. Raises PerfError."""
    with disk(folder, "; the measurements are kept: `hf-triton perf report` makes the rest"):
        write_renderings(folder)


def digest(files: Mapping[str, str]) -> str:
    """Of what is sent: other inputs are another run."""
    return hashlib.sha256(json.dumps(sorted(files.items())).encode()).hexdigest()[:16]


def _go_on(folder: Path, run: Run) -> set[str]:
    """Keys of what went well; what failed is taken out, to be tried again."""
    try:
        before = read_run(folder)
        found = read_measurements(folder)
    except ValueError as error:
        raise PerfError(f"{error}; choose another --output, or begin again with --fresh") from None
    if before.kind != KIND or before.scenario != _as_read(run.scenario):
        other = "a sweep of another scenario" if before.kind == KIND else f"a {before.kind}"
        raise PerfError(
            f"{folder} holds {other}; choose another --output, or --fresh to measure again and "
            "lose it"
        )
    good = [one for one in found if one.num_requests]
    if len(good) < len(found):
        _replace(folder, good)
    return {key_of(one.load, one.repeat) for one in good}


def _replace(folder: Path, measurements: list[Measurement]) -> None:
    """All of the file at once, or not at all."""
    scratch = folder / ".again"
    scratch.mkdir(exist_ok=True)
    (scratch / MEASUREMENTS_FILE).unlink(missing_ok=True)
    (scratch / MEASUREMENTS_FILE).touch()
    for one in measurements:
        append(scratch, one)
    (scratch / MEASUREMENTS_FILE).replace(folder / MEASUREMENTS_FILE)
    scratch.rmdir()


def _clear(folder: Path) -> None:
    """Our own two files; the renderings are written again."""
    if (folder / RUN_FILE).exists():
        for name in (MEASUREMENTS_FILE, RUN_FILE):
            (folder / name).unlink(missing_ok=True)


def _as_read(values: Mapping[str, Any]) -> Any:
    return json.loads(json.dumps(values))


@contextlib.contextmanager
def disk(folder: Path, kept: str = "") -> Iterator[None]:
    """Turns what goes wrong with the disk into a PerfError; ``kept`` is said at its end."""
    try:
        yield
    except OSError as error:
        hint = " (free some, then the same command goes on)" if error.errno == errno.ENOSPC else ""
        raise PerfError(
            f"{folder} can't be written: {error.strerror or error}{hint}{kept}"
        ) from None
