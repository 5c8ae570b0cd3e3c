"""One run from its arguments to its report: begun or gone on with, measured, rendered, told."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path

from generator.errors import EXIT_INTERRUPTED, EXIT_OK, PerfError
from perf import machine
from perf.growth.axis import Axis
from perf.growth.curves import Section
from perf.growth.rendering import PAGE_FILE, write_growth
from perf.growth.running import Runner, Work
from perf.in_use import in_use
from perf.report.schema import MEASUREMENTS_FILE, RUN_FILE, Run, read_run, write_run

KIND = "growth"
_SAME = ("cpu", "cores", "memory_gib")  # of the hardware, in all of a run


@dataclass(frozen=True)
class Asked:
    """What the command line asks for; ``points`` and ``repeats`` instead of the axes' own."""

    axes: Sequence[Axis]
    points: dict[str, tuple[int, ...]]
    quick: bool
    repeats: int | None
    seed: int
    folder: Path
    arguments: Sequence[str]

    def work(self) -> Work:
        """Every axis with its points and repeats."""
        points = {
            axis.name: self.points.get(axis.name, axis.quick_points if self.quick else axis.points)
            for axis in self.axes
        }
        repeats = {
            axis.name: self.repeats or (1 if self.quick else axis.repeats) for axis in self.axes
        }
        return Work(self.axes, points, repeats, self.seed)


def run(asked: Asked) -> int:
    """Measures what the folder does not have yet; the exit code. Raises PerfError where points
    could not be measured, after everything else is.
    """
    with in_use(asked.folder):
        return _run(asked, asked.work())


def _run(asked: Asked, work: Work) -> int:
    try:
        _begin(asked, work)
        runner = Runner(asked.folder, work)
        interrupted = _measure(runner)
        _tell(asked.folder, write_growth(asked.folder))
    except (OSError, ValueError) as error:
        raise PerfError(_told(error, asked.folder)) from error
    if interrupted:
        kept = f"what is measured is in {asked.folder}; the same command goes on"
        print(f"hf-triton perf growth: interrupted: {kept}", file=sys.stderr)
        return EXIT_INTERRUPTED
    if runner.problems:
        raise PerfError("\n".join(["not all points were measured:", *runner.problems]))
    return EXIT_OK


def _measure(runner: Runner) -> bool:
    """Whether it was interrupted."""
    try:
        runner.run()
    except KeyboardInterrupt:
        return True
    return False


def _begin(asked: Asked, work: Work) -> None:
    """Writes run.json, or goes on with the one that is there. Raises PerfError where it is of
    something else, OSError, ValueError.
    """
    now = _new_run(asked, work)
    if not (asked.folder / RUN_FILE).exists():
        write_run(asked.folder, now)
        return
    before = read_run(asked.folder)
    if before.kind != KIND:
        raise PerfError(f"{asked.folder}: holds a run of {before.kind}: choose another --output")
    for name in _SAME:
        if before.hardware.get(name) != now.hardware[name]:
            raise PerfError(
                f"{asked.folder}: was measured on another machine ({name} "
                f"{before.hardware.get(name)}, here {now.hardware[name]}): choose another --output"
            )
    if before.scenario.get("seed") != asked.seed:
        raise PerfError(f"{asked.folder}: has another --seed: choose another --output")
    note = f"went on at commit {now.commit}"
    if now.commit != before.commit and note not in before.notes:
        write_run(asked.folder, replace(before, notes=[*before.notes, note]))


def _new_run(asked: Asked, work: Work) -> Run:
    return Run(
        kind=KIND,
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        command=shlex.join(["hf-triton", *asked.arguments]),
        commit=machine.commit(),
        hardware=machine.hardware(),
        versions=machine.versions(),
        title="How time and memory grow",
        scenario={
            "points": {name: list(points) for name, points in work.points.items()},
            "repeats": dict(work.repeats),
            "seed": asked.seed,
        },
    )


def _tell(folder: Path, sections: Sequence[Section]) -> None:
    """One line for each curve, and where the report is."""
    for section in sections:
        print(f"{section.axis.title}")
        for drawn in section.charts:
            for curve in drawn.curves:
                mark = "!" if curve.is_worse else " "
                print(f"{mark} {curve.target}, {curve.figure.words}: {curve.verdict()}")
                if curve.is_worse:
                    print(f"    {drawn.explanation(curve)}")
    print(folder / PAGE_FILE)


def _told(error: Exception, folder: Path) -> str:
    reason = str(error)
    if isinstance(error, OSError) and error.strerror:
        reason = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    has_some = (folder / MEASUREMENTS_FILE).exists()
    return f"{reason}; what is measured is in {folder}" if has_some else reason
