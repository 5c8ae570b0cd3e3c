"""Whether what won is better than what was: both measured again, in turns, and what that comes to
in words. Of many trials the luckiest looks best, so the search's own figures do not decide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from perf.report.schema import Measurement, append, read_measurements
from perf.tune.goal import Goal
from perf.tune.settings.keys import settings_text
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
        winner, current = (median(map(goal.value, each)) for each in (self.winner, self.current))
        return winner / current

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
                    with self.bench.serving(outcome.settings) as measure:
                        append(self.folder, measure(self.seconds))
                self.advance()
        return Confirmation(
            self.repeats_of(winner)[: self.repeats], self.repeats_of(current)[: self.repeats]
        )

    def repeats_of(self, outcome: Outcome) -> list[Measurement]:
        """Those after the trial's own measurement."""
        load = outcome.measurement.load
        found = [each for each in read_measurements(self.folder) if each.load == load]
        return [each for each in found if each.repeat > outcome.measurement.repeat]


@dataclass(frozen=True)
class Verdict:
    """``winner`` is None where nothing meets the bounds; ``nearest`` comes nearest to them.
    ``missed`` won, and then missed the bounds when it was measured again.
    """

    winner: Outcome | None
    current: Outcome | None
    confirmation: Confirmation | None
    nearest: Outcome | None
    missed: tuple[Outcome, ...] = ()

    def is_worth_writing(self, goal: Goal) -> bool:
        """Whether the winner is other than the current settings, and better: beyond noise, or as
        the only one of the two that meets the bounds.
        """
        if self.winner is None or self.winner.number == 0:
            return False
        if self.current is None or not goal.is_met(self.current.measurement):
            return True
        return self.confirmation is not None and self.confirmation.is_beyond_noise(goal)


def told(verdict: Verdict, goal: Goal) -> Iterator[str]:
    """Lines for people."""
    for each in verdict.missed:
        yield f"trial {each.number} won, but missed the bounds when it was measured again"
    if verdict.winner is None:
        yield from _nothing_fits(verdict, goal)
        return
    if verdict.winner.number == 0:
        yield "the current settings are the best that was found"
        return
    number, best = verdict.winner.number, dict(verdict.winner.settings)
    yield f"best: trial {number}: {settings_text(best)}"
    yield from _against_current(verdict, goal)


def _nothing_fits(verdict: Verdict, goal: Goal) -> Iterator[str]:
    if verdict.nearest is None:
        yield "nothing could be measured: see why each trial failed"
        return
    near = verdict.nearest
    yield f"nothing meets the bounds ({goal.describe()})"
    yield f"nearest: trial {near.number}: {settings_text(dict(near.settings))}"


def _against_current(verdict: Verdict, goal: Goal) -> Iterator[str]:
    current, confirmation = verdict.current, verdict.confirmation
    if current is None or current.state == "failed":
        yield "the current settings could not be measured"
        return
    if not goal.is_met(current.measurement):
        yield "the current settings miss the bounds"
    if confirmation is None:
        yield "not measured again: whether it is better than the current settings is not known"
        return
    yield _ratio(confirmation, goal)


def _ratio(confirmation: Confirmation, goal: Goal) -> str:
    what = "throughput" if goal.wanted == "throughput" else "p99 latency"
    ratios = sorted(confirmation.ratios(goal))
    spread = f"{ratios[0]:.2f} to {ratios[-1]:.2f} in {len(ratios)} turns" if ratios else ""
    times = f"{confirmation.ratio(goal):.2f} times the current settings' {what} ({spread})"
    if not confirmation.tells:
        return f"{times}: too few repeats to tell that from noise (--repeats {ENOUGH})"
    if confirmation.is_beyond_noise(goal):
        return f"{times}: beyond noise"
    return f"{times}: within noise, for runs of the two overlap"
