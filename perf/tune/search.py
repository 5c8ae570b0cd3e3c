"""Coordinate search: moves one key at a time up and down its values while that improves the result,
then measures the winner and the current settings again in turns. Results are kept, so a search
continues.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from perf.report.compare import Compared
from perf.report.noise import difference
from perf.report.points import LATENCY, THROUGHPUT, TOKENS
from perf.report.schema import Load, Measurement, append, read_measurements
from perf.tune.bench import TrialError
from perf.tune.question import Goal, Request
from perf.tune.space import Settings, Space, are_ordered

MAX_FAILURES = 3  # failures in a row before any success: the model does not load at all
_NUM_WORSE = 2  # values in a row without improvement that end a direction


@dataclass
class Search:
    """One search in one folder. ``tell`` gets the number of each trial that ends, and what was
    measured.
    """

    space: Space
    request: Request
    bench: Any  # a Bench
    folder: Path
    tell: Callable[[int, Measurement], object] = lambda *_: None

    def run(self) -> str:
        """Runs until the search ends; returns the reason. Raises OSError, KeyboardInterrupt."""
        self._better(self.space.current)
        while any(map(self._improve_key, self.space.dimensions)):
            pass
        return self._end() or "no other value of a key is better"

    def trials(self) -> list[Measurement]:
        """The finished trials; the first has the current settings."""
        return [each for each in read_measurements(self.folder) if each.repeat == 0]

    def ranked(self) -> list[Measurement]:
        """The trials that did not fail, the best first."""
        whole = [each for each in self.trials() if not each.has_failed]
        return sorted(whole, key=self.request.goal.loss)

    def _improve_key(self, key: str) -> bool:
        best = self.ranked()
        settings = best[0].load.settings if best else self.space.current
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
        trials = self.trials()
        is_new = all(dict(each.load.settings) != dict(settings) for each in trials)
        if not is_new or self._end():
            return False
        try:
            with self.bench.serving(settings) as measure:
                found: Measurement = measure(self.request.seconds)
        except TrialError as error:
            found = self.bench.failed(settings, str(error))
        append(self.folder, found)
        self.tell(len(trials), found)
        return self.ranked()[:1] == self.trials()[-1:]

    def _end(self) -> str:
        """The reason to end the search, or nothing."""
        trials = self.trials()
        if len(trials) >= self.request.trials:
            return f"{self.request.trials} trials"
        if len(trials) >= MAX_FAILURES and all(each.has_failed for each in trials):
            return f"{len(trials)} trials, all failed"
        return ""

    def in_turns(self, winner: Load, current: Load) -> tuple[list[Measurement], list[Measurement]]:
        """Measures both in turns, each time on a new server; repeats in the folder are kept."""
        most, folder = self.request.repeats, self.folder

        def found(load: Load) -> list[Measurement]:
            return [each for each in read_measurements(folder) if each.load == load and each.repeat]

        for turn in range(1, most + 1):
            for load in (current, winner):
                if len(found(load)) < turn:
                    with self.bench.serving(load.settings) as measure:
                        append(folder, replace(measure(self.request.seconds), repeat=turn))
        return found(winner)[:most], found(current)[:most]


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
