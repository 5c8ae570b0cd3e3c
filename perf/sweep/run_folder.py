"""The folder of a sweep: what run.json tells of it; begun, gone on with, or begun again. What is
measured is never lost to it: a folder of another run is refused.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from generator.errors import PerfError
from perf.in_use import taken_up
from perf.machine import here
from perf.report.rendering import write_renderings
from perf.report.schema import (
    MEASUREMENTS_FILE,
    RUN_FILE,
    Run,
    read_measurements,
    write_run,
    write_text,
)
from perf.sweep.analyzer.finding import Analyzer
from perf.sweep.plan import Planned, key_of
from perf.sweep.scenario.model import Sweep, as_values
from perf.usage import gpu_names

KIND = "sweep"


def described(
    sweep: Sweep, command: str, analyzer: Analyzer, found: Sequence[Planned], inputs: str
) -> Run:
    """How it comes about, for run.json."""
    servers = {one.server for one in found}
    versions = {"perf_analyzer": analyzer.version}
    served = {server.version() for server in servers} - {""}
    if served:
        versions["triton"] = ", ".join(sorted(served))
    gpus = gpu_names() if any(server.is_local for server in servers) else []
    hardware = {"gpu": ", ".join(gpus)} if gpus else {}
    models = ", ".join(dict.fromkeys(one.load.target for one in found))
    return Run(
        kind=KIND,
        **here(command, hardware, versions),
        title=sweep.title or f"sweep of {models}",
        scenario={**as_values(sweep), "inputs": inputs},
        notes=_notes(analyzer, found),
    )


def _notes(analyzer: Analyzer, found: Sequence[Planned]) -> list[str]:
    notes = [f"perf_analyzer {analyzer.version}, {analyzer.origin}"]
    if any(one.streams for one in found):
        notes.append("inter-token latency is the time between the chunks of an answer")
    notes += dict.fromkeys(one.requests.note for one in found if one.requests.note)
    far = dict.fromkeys(one.server.addresses.http for one in found if not one.server.is_local)
    if far:
        notes.append(
            f"hardware and CPU are of the machine that sent the load; {', '.join(far)} is another"
        )
    return notes


def begin(folder: Path, run: Run, files: Mapping[str, str], fresh: bool) -> set[str]:
    """Writes the run and its input files; the keys of what went well already. What failed is taken
    out, to be tried again.

    Raises PerfError where the folder holds another run, or can't be written.
    """
    with disk(folder):
        if fresh and (folder / RUN_FILE).exists():  # our own two; what shows them is written again
            for name in (MEASUREMENTS_FILE, RUN_FILE):
                (folder / name).unlink(missing_ok=True)
        taken_up(folder, run, "choose another --output, or --fresh to measure again and lose it")
        try:
            found = read_measurements(folder)
        except ValueError as error:
            raise PerfError(f"{error}; choose another --output, or --fresh") from None
        good = [one for one in found if one.num_requests]
        if len(good) < len(found):
            lines = (folder / MEASUREMENTS_FILE).read_text("utf-8").splitlines(keepends=True)
            whole = [line for line in lines if line.strip()][: len(found)]
            kept = (line for line, one in zip(whole, found, strict=True) if one.num_requests)
            write_text(folder / MEASUREMENTS_FILE, "".join(kept))
        if not good:
            write_run(folder, run)
    write_files(folder, files)
    return {key_of(one.load, one.repeat) for one in good}


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
    """A digest of what is sent: other inputs are another run."""
    return hashlib.sha256(json.dumps(sorted(files.items())).encode()).hexdigest()[:16]


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
