"""Coordinate search: moves one key at a time up and down its values while that improves the result,
then measures the winner and the current settings again in turns. Results are kept, so a search
continues.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perf.report.compare import Compared
from perf.report.noise import difference
from perf.report.points import LATENCY, THROUGHPUT, TOKENS
from perf.report.schema import Measurement, append, read_measurements
from perf.tune.bench import TrialError
from perf.tune.question import Goal, Request
from perf.tune.space import Settings, Space, are_ordered

MAX_FAILURES = 3  # failures in a row before any success: the model does not load at all
_NUM_WORSE = 2  # values in a row without improvement that end a direction


@dataclass(frozen=True)
class Outcome:
    """A finished trial; for a failed one ``measurement.first_error`` is the reason."""

    number: int  # 0 is the current settings
    measurement: Measurement

    @property
    def has_failed(self) -> bool:
        return bool(not self.measurement.num_requests and self.measurement.first_error)

    @property
    def settings(self) -> Settings:
        return self.measurement.load.settings


def outcomes_in(folder: Path) -> list[Outcome]:
    lines = [each for each in read_measurements(folder) if each.repeat == 0]
    return [Outcome(number, each) for number, each in enumerate(lines)]


def measured(outcomes: Iterable[Outcome], goal: Goal) -> list[Outcome]:
    whole = [each for each in outcomes if not each.has_failed]
    return sorted(whole, key=lambda each: goal.loss(each.measurement))


@dataclass
class Search:
    """One search in one folder. ``tell`` gets each trial's outcome."""

    space: Space
    request: Request
    bench: Any  # a Bench
    folder: Path
    tell: Callable[[Outcome], object] = lambda _: None

    def run(self) -> str:
        """Runs until the search ends; returns the reason. Raises OSError, KeyboardInterrupt."""
        self._better(self.space.current)
        while any(map(self._improve_key, self.space.dimensions)):
            pass
        return self._end(outcomes_in(self.folder)) or "no other value of a key is better"

    def _improve_key(self, key: str) -> bool:
        best = measured(outcomes_in(self.folder), self.request.goal)
        settings = best[0].settings if best else self.space.current
        values, is_better = self.space.dimensions[key], False
        begin = values.index(settings[key])
        if settings[key] is None:  # the model's default has no place among the numbers
            begin = (len(values) + 1) // 2
            is_better = self._better({**settings, key: values[begin]})
        for way in (values[begin + 1 :], values[:begin][::-1]):
            num_worse = 0
            for value in way:
                found = self._better({**settings, key: value})
                is_better |= found
                num_worse = 0 if found else num_worse + 1
                if num_worse == _NUM_WORSE and are_ordered(values):
                    break
        return is_better

    def _better(self, settings: Settings) -> bool:
        """Tries settings that are new, unless the search is at its end; whether they are the best
        so far.
        """
        outcomes = outcomes_in(self.folder)
        is_new = all(dict(each.settings) != dict(settings) for each in outcomes)
        if not is_new or self._end(outcomes):
            return False
        try:
            with self.bench.serving(settings) as measure:
                found: Measurement = measure(self.request.seconds)
        except TrialError as error:
            found = self.bench.failed(settings, str(error))
        append(self.folder, found)
        outcomes = outcomes_in(self.folder)
        self.tell(outcomes[-1])
        return measured(outcomes, self.request.goal)[:1] == [outcomes[-1]]

    def _end(self, outcomes: Sequence[Outcome]) -> str:
        """The reason to end the search, or nothing."""
        if len(outcomes) >= self.request.trials:
            return f"{self.request.trials} trials"
        if len(outcomes) >= MAX_FAILURES and all(each.has_failed for each in outcomes):
            return f"{len(outcomes)} trials, all failed"
        return ""


def in_turns(
    bench: Any, folder: Path, winner: Outcome, current: Outcome, request: Request
) -> tuple[list[Measurement], list[Measurement]]:
    """Measures both in turns, each time on a new server; repeats in the folder are kept."""

    def found(outcome: Outcome) -> list[Measurement]:
        load = outcome.measurement.load
        return [each for each in read_measurements(folder) if each.load == load and each.repeat]

    for turn in range(1, request.repeats + 1):
        for outcome in (current, winner):
            if len(found(outcome)) < turn:
                with bench.serving(outcome.settings) as measure:
                    append(folder, measure(request.seconds))
    return found(winner)[: request.repeats], found(current)[: request.repeats]


def compared(
    winner: Sequence[Measurement], current: Sequence[Measurement], goal: Goal
) -> Compared | None:
    """The winner's repeats against the current settings', by the rule of ``perf compare``."""
    metric = LATENCY["p99"] if goal.wanted == "latency" else TOKENS
    if goal.wanted == "throughput" and any(each.output_tokens_per_s is None for each in current):
        metric = THROUGHPUT
    values = ([v for each in of if (v := metric.value(each))] for of in (current, winner))
    found = difference(*values)
    return Compared(metric, found) if found else None
