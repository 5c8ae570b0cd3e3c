"""One run from its arguments to its report: begun or gone on with, measured, rendered, told."""

from __future__ import annotations

import shlex
import sys
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from tqdm import tqdm  # type: ignore[import-untyped]

from generator.errors import EXIT_INTERRUPTED, EXIT_OK, GeneratorError, PerfError
from perf.growth.axes.axis import Axis, Cost, Measure, Place, Step, place_of
from perf.growth.axes.server import KEPT_FREE_GIB
from perf.growth.curves import Section
from perf.growth.page import PAGE_FILE, write_growth
from perf.in_use import in_use
from perf.report.head import here, now
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
from perf.usage import available_gib

KIND = "growth"
_SAME = ("cpu", "cores", "memory_gib")  # of the hardware, in all of a run
_BAR_FORMAT = "{n}/{total} points |{bar:20}| {elapsed} {desc}{postfix}"
Done = set[tuple[str, str, int, int]]  # axis, target, value, repeat


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

    def points_of(self, axis: Axis) -> tuple[int, ...]:
        """Those given, or the axis' own."""
        return self.points.get(axis.name, axis.quick_points if self.quick else axis.points)

    def repeats_of(self, axis: Axis) -> int:
        """How often each point is measured."""
        return self.repeats or (1 if self.quick else axis.repeats)

    def steps(self, axis: Axis) -> list[Step]:
        """Every point once, then every point again: what else a machine does meets all alike."""
        repeats = range(self.repeats_of(axis))
        return [Step(value, repeat) for repeat in repeats for value in self.points_of(axis)]


def run(asked: Asked) -> int:
    """Measures what the folder does not have yet; the exit code. Raises PerfError where points
    could not be measured, after everything else is.
    """
    with in_use(asked.folder):
        try:
            _begin(asked)
            problems: list[str] = []
            interrupted = _is_interrupted(asked, problems)
            _tell(asked.folder, write_growth(asked.folder))
        except (OSError, ValueError) as error:
            raise PerfError(_told(error, asked.folder)) from error
    if interrupted:
        kept = f"what is measured is in {asked.folder}; the same command goes on"
        print(f"hf-triton perf growth: interrupted: {kept}", file=sys.stderr)
        return EXIT_INTERRUPTED
    if problems:
        raise PerfError("\n".join(["not all points were measured:", *problems]))
    return EXIT_OK


def _begin(asked: Asked) -> None:
    """Writes run.json, or goes on with the one that is there. Raises PerfError where it is of
    something else, OSError, ValueError.
    """
    new = Run(
        kind=KIND,
        title="How time and memory grow",
        scenario={
            "points": {axis.name: list(asked.points_of(axis)) for axis in asked.axes},
            "repeats": {axis.name: asked.repeats_of(axis) for axis in asked.axes},
            "seed": asked.seed,
        },
        **here(shlex.join(["hf-triton", *asked.arguments])),
    )
    if not (asked.folder / RUN_FILE).exists():
        write_run(asked.folder, new)
        return
    before = read_run(asked.folder)
    other = "choose another --output"
    if before.kind != KIND:
        raise PerfError(f"{asked.folder}: holds a run of {before.kind}: {other}")
    for name in _SAME:
        was, is_now = before.hardware.get(name), new.hardware[name]
        if was != is_now:
            differs = f"{name} {was}, here {is_now}"
            raise PerfError(f"{asked.folder}: was measured on another machine ({differs}): {other}")
    if before.scenario.get("seed") != asked.seed:
        raise PerfError(f"{asked.folder}: has another --seed: {other}")
    note = f"went on at commit {new.commit}"
    if new.commit != before.commit and note not in before.notes:
        write_run(asked.folder, replace(before, notes=[*before.notes, note]))


def _is_interrupted(asked: Asked, problems: list[str]) -> bool:
    """Measures what is missing, each point kept as soon as it is there; adds to ``problems`` what
    kept it from some. Raises OSError where the run can't be written to.
    """
    done = {(*place_of(each), each.repeat) for each in read_measurements(asked.folder)}
    missing = {
        axis.name: [step for step in asked.steps(axis) if not _keys(axis, step) <= done]
        for axis in asked.axes
    }
    total = sum(len(asked.steps(axis)) for axis in asked.axes)
    bar = tqdm(
        total=total,
        initial=total - sum(map(len, missing.values())),
        bar_format=_BAR_FORMAT,
        mininterval=0.5,
        miniters=0,
    )
    with bar:
        try:
            for axis in asked.axes:
                problems += _measure(axis, missing[axis.name], asked, done, bar)
        except KeyboardInterrupt:
            return True
    return False


def _measure(axis: Axis, steps: list[Step], asked: Asked, done: Done, bar: tqdm) -> list[str]:
    """The steps that the machine has the memory for; returns why others are not measured."""
    left_out: dict[int, str] = {}
    measure: Measure | None = None
    try:
        with ExitStack() as stack:
            for step in steps:
                what = f"{step.value:,} {axis.unit}"
                if reason := too_little(axis.memory_gib(step.value), what):
                    left_out.setdefault(step.value, f"{axis.name}: {reason}")
                    continue
                bar.set_description_str(f"{axis.name}, {what}")
                bar.set_postfix_str("")
                measure = measure or _opened(axis, asked, bar, stack)
                _keep(axis, step, measure(step), asked.folder, done)
                bar.update()
    except GeneratorError as error:  # another axis may still be measured
        return [*left_out.values(), f"{axis.name}: {error}"]
    return list(left_out.values())


def _opened(axis: Axis, asked: Asked, bar: tqdm, stack: ExitStack) -> Measure:
    def say(doing: str) -> None:
        bar.set_postfix_str(doing, refresh=False)
        bar.update(0)

    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="perf-growth-"))
    return stack.enter_context(axis.session(Place(Path(folder), asked.seed, say)))


def _keep(axis: Axis, step: Step, costs: Iterable[Cost], folder: Path, done: Done) -> None:
    for cost in costs:
        key = (axis.name, cost.target, step.value, step.repeat)
        if key not in done:
            append(folder, _measurement(axis, step, cost))
            done.add(key)


def _keys(axis: Axis, step: Step) -> Done:
    return {(axis.name, target, step.value, step.repeat) for target in axis.targets}


def too_little(needed_gib: float, what: str) -> str:
    """Why the machine has not enough for ``what``; empty where KEPT_FREE_GIB would be left."""
    available = available_gib()
    if available - needed_gib >= KEPT_FREE_GIB:
        return ""
    return (
        f"not enough memory for {what}: about {needed_gib:.1f} GiB are needed and "
        f"{KEPT_FREE_GIB:g} GiB stay free, but the machine has {available:.1f} GiB left; end other "
        "programs, or leave such points out with --points"
    )


def _measurement(axis: Axis, step: Step, cost: Cost) -> Measurement:
    values = asdict(cost)
    figures, target = values.pop("figures"), values.pop("target")
    return Measurement(
        load=axis.load(target, step.value),
        repeat=step.repeat,
        started=now(),
        requests_per_s=cost.num_requests / cost.duration_s if cost.duration_s else 0.0,
        machine=figures,
        **values,
    )


def _tell(folder: Path, sections: Sequence[Section]) -> None:
    """One line for each curve, and where the report is."""
    for section in sections:
        print(f"{section.axis.title}")
        for drawn in section.charts:
            for curve, _, why in drawn.verdicts():
                print(f"{'!' if why else ' '} {curve.target}, {curve.words}: {curve.verdict()}")
                if why:
                    print(f"    {why}")
    print(folder / PAGE_FILE)


def _told(error: Exception, folder: Path) -> str:
    reason = str(error)
    if isinstance(error, OSError) and error.strerror:
        reason = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    has_some = (folder / MEASUREMENTS_FILE).exists()
    return f"{reason}; what is measured is in {folder}" if has_some else reason
