"""Measures the steps of axes that a run does not have yet; keeps each as soon as it is there."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

from tqdm import tqdm  # type: ignore[import-untyped]

from generator.errors import GeneratorError
from perf.growth.axis import Axis, Cost, Measure, Place, Step, place_of, steps
from perf.growth.processes import too_little
from perf.report.schema import Measurement, append, read_measurements

_BAR_FORMAT = "{n}/{total} points |{bar:20}| {elapsed} {desc}{postfix}"
Done = set[tuple[str, str, int, int]]  # axis, target, value, repeat


@dataclass(frozen=True)
class Work:
    """What is asked for: the axes, the points and the repeats of each, by its name."""

    axes: Sequence[Axis]
    points: Mapping[str, Sequence[int]]
    repeats: Mapping[str, int]
    seed: int = 0

    def steps(self, axis: Axis) -> list[Step]:
        """Every step of an axis."""
        return list(steps(self.points[axis.name], self.repeats[axis.name]))


@dataclass
class Runner:
    """Measures into a run's folder; ``problems`` is what kept it from some of the points."""

    folder: Path
    work: Work
    problems: list[str] = field(default_factory=list)

    def run(self) -> None:
        """Measures what is missing. Raises OSError where the run can't be written to."""
        done = done_in(self.folder)
        missing = {axis.name: self._missing(axis, done) for axis in self.work.axes}
        total = sum(len(self.work.steps(axis)) for axis in self.work.axes)
        initial = total - sum(map(len, missing.values()))
        with tqdm(
            total=total, initial=initial, bar_format=_BAR_FORMAT, mininterval=0.5, miniters=0
        ) as bar:
            for axis in self.work.axes:
                if missing[axis.name]:
                    self._run_axis(axis, missing[axis.name], done, bar)

    def _missing(self, axis: Axis, done: Done) -> list[Step]:
        return [
            step
            for step in self.work.steps(axis)
            if any(_key(axis, target, step) not in done for target in axis.targets)
        ]

    def _run_axis(self, axis: Axis, wanted: Sequence[Step], done: Done, bar: tqdm) -> None:
        """Another axis may still be measured where this one can't be gone on with."""
        bar.set_description_str(axis.name)

        def say(doing: str) -> None:
            bar.set_postfix_str(doing, refresh=False)
            bar.update(0)

        try:
            with _Opened(axis, self.work.seed, say) as measure:
                for step in self._affordable(axis, wanted):
                    bar.set_description_str(f"{axis.name}, {step.value:,} {axis.unit}")
                    bar.set_postfix_str("")
                    self._keep(axis, step, measure(step), done)
                    bar.update()
        except GeneratorError as error:
            self.problems.append(f"{axis.name}: {error}")

    def _affordable(self, axis: Axis, wanted: Sequence[Step]) -> Iterator[Step]:
        """The steps that the machine has the memory for."""
        told: set[int] = set()
        for step in wanted:
            what = f"{step.value:,} {axis.unit}"
            reason = too_little(axis.memory_gib(step.value), what)
            if reason and step.value not in told:
                told.add(step.value)
                self.problems.append(f"{axis.name}: {reason}")
            elif not reason:
                yield step

    def _keep(self, axis: Axis, step: Step, costs: Iterator[Cost], done: Done) -> None:
        for cost in costs:
            key = _key(axis, cost.target, step)
            if key not in done:
                append(self.folder, _measurement(axis, step, cost))
                done.add(key)


class _Opened:
    """An axis' session that begins with its first step, so that a problem with it is a step's."""

    def __init__(self, axis: Axis, seed: int, say: Callable[[str], None]) -> None:
        self._axis, self._seed, self._say = axis, seed, say
        self._stack = ExitStack()
        self._measure: Measure | None = None

    def __enter__(self) -> Callable[[Step], Iterator[Cost]]:
        self._stack.__enter__()
        return self._costs

    def __exit__(self, *error: object) -> None:
        self._stack.__exit__(*error)  # type: ignore[arg-type]

    def _costs(self, step: Step) -> Iterator[Cost]:
        if self._measure is None:
            folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="perf-growth-"))
            session: AbstractContextManager[Measure] = self._axis.session(
                Place(Path(folder), self._seed, self._say)
            )
            self._measure = self._stack.enter_context(session)
        yield from self._measure(step)


def done_in(folder: Path) -> Done:
    """What a run has. Raises OSError, ValueError."""
    return {(*place_of(each), each.repeat) for each in read_measurements(folder)}


def _key(axis: Axis, target: str, step: Step) -> tuple[str, str, int, int]:
    return axis.name, target, step.value, step.repeat


def _measurement(axis: Axis, step: Step, cost: Cost) -> Measurement:
    return Measurement(
        load=axis.load(cost.target, step.value),
        repeat=step.repeat,
        started=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        duration_s=cost.duration_s,
        num_requests=cost.num_requests,
        num_errors=cost.num_errors,
        first_error=cost.first_error,
        requests_per_s=cost.num_requests / cost.duration_s if cost.duration_s else 0.0,
        machine=dict(cost.figures),
    )
