"""Whether what won is better than what was: both measured again, in turns.

Of many trials the luckiest looks best, so the search's own figures for it are not what decides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from perf.report.schema import Measurement, append, read_measurements
from perf.tune.goal import Goal
from perf.tune.space import Settings
from perf.tune.trials import Bench, Outcome

ENOUGH = 3  # runs of each


@dataclass(frozen=True)
class Confirmation:
    """The repeats of both; the last of each are those made in turns."""

    winner: Sequence[Measurement]
    current: Sequence[Measurement]

    def ratios(self, goal: Goal) -> list[float]:
        """The winner's value as a multiple of the current settings', by turn."""
        pairs = zip(self.winner, self.current, strict=True)
        return [goal.value(one) / goal.value(other) for one, other in pairs if goal.value(other)]

    def ratio(self, goal: Goal) -> float:
        """Of the medians over the turns."""
        return _median(goal, self.winner) / _median(goal, self.current)

    @property
    def tells(self) -> bool:
        """Whether there are runs enough to tell anything from noise."""
        return min(len(self.winner), len(self.current)) >= ENOUGH

    def is_beyond_noise(self, goal: Goal) -> bool:
        """Whether every run of the winner is better than every one of the current settings: by
        chance, that happens once in twenty with three runs each.
        """
        return self.tells and all(
            goal.is_better(goal.value(one), goal.value(other))
            for one in self.winner
            for other in self.current
        )

    def meets(self, goal: Goal) -> bool:
        """Whether the winner keeps to the bounds in most of its runs."""
        met = [goal.is_met(each) for each in self.winner]
        return sum(met) * 2 > len(met)


@dataclass(frozen=True)
class Turns:
    """Measures two settings again, each ``repeats`` times, on servers started for it."""

    bench: Bench
    folder: Path
    seconds: float
    repeats: int
    advance: Callable[[], object] = lambda: None

    def run(self, winner: Outcome, current: Outcome) -> Confirmation:
        """What is in the folder already is not measured again. Raises TrialError, OSError."""
        for turn in range(1, self.repeats + 1):
            for outcome in (current, winner):
                if len(self.repeats_of(outcome)) < turn:
                    self._measure(outcome.settings)
                self.advance()
        return Confirmation(
            self.repeats_of(winner)[: self.repeats], self.repeats_of(current)[: self.repeats]
        )

    def repeats_of(self, outcome: Outcome) -> list[Measurement]:
        """Those after the trial's own measurement."""
        load = outcome.measurement.load
        found = [each for each in read_measurements(self.folder) if each.load == load]
        return [each for each in found if each.repeat > outcome.measurement.repeat]

    def _measure(self, settings: Settings) -> None:
        with self.bench.serving(settings) as measure:
            append(self.folder, measure(self.seconds))


def _median(goal: Goal, measurements: Sequence[Measurement]) -> float:
    return median(goal.value(each) for each in measurements)
