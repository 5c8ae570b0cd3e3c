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

ENOUGH = 3  # runs of each, to tell anything from noise


@dataclass(frozen=True)
class Confirmation:
    """The repeats of both; the last of each are those made in turns."""

    winner: Sequence[Measurement]
    current: Sequence[Measurement]

    def ratio(self, goal: Goal) -> float:
        """The winner's value as a multiple of the current settings', of the medians."""
        winner, current = (median(map(goal.value, each)) for each in (self.winner, self.current))
        return winner / current

    def is_beyond_noise(self, goal: Goal) -> bool:
        """Whether every run of the winner is better than every one of the current settings: by
        chance, that happens once in twenty with three runs each.
        """
        return min(len(self.winner), len(self.current)) >= ENOUGH and all(
            goal.is_better(goal.value(one), goal.value(other))
            for one in self.winner
            for other in self.current
        )

    def meets(self, goal: Goal) -> bool:
        """Whether the winner keeps to the bounds in most of its runs."""
        return sum(map(goal.is_met, self.winner)) * 2 > len(self.winner)

    def told(self, goal: Goal) -> str:
        """For people: the ratio, by turn its spread, and whether it is noise."""
        pairs = zip(self.winner, self.current, strict=True)
        values = [(goal.value(one), goal.value(other)) for one, other in pairs]
        ratios = sorted(one / other for one, other in values if other)
        spread = f"{ratios[0]:.2f} to {ratios[-1]:.2f} in {len(ratios)} turns" if ratios else ""
        what = "throughput" if goal.wanted == "throughput" else "p99 latency"
        times = f"{self.ratio(goal):.2f} times the current settings' {what} ({spread})"
        if self.is_beyond_noise(goal):
            return f"{times}: beyond noise"
        if min(len(self.winner), len(self.current)) < ENOUGH:
            return f"{times}: too few repeats to tell that from noise (--repeats {ENOUGH})"
        return f"{times}: within noise, for runs of the two overlap"


def in_turns(
    bench: Bench,
    folder: Path,
    winner: Outcome,
    current: Outcome,
    *,
    repeats: int,
    seconds: float,
    advance: Callable[[], object] = lambda: None,
) -> Confirmation:
    """Measures both again, each ``repeats`` times, on servers started for it; what is in the folder
    already is not measured again. Raises TrialError, OSError.
    """

    def found(outcome: Outcome) -> list[Measurement]:
        """Those after the trial's own measurement."""
        first = outcome.measurement
        every = [each for each in read_measurements(folder) if each.load == first.load]
        return [each for each in every if each.repeat > first.repeat]

    for turn in range(1, repeats + 1):
        for outcome in (current, winner):
            if len(found(outcome)) < turn:
                with bench.serving(outcome.settings) as measure:
                    append(folder, measure(seconds))
            advance()
    return Confirmation(found(winner)[:repeats], found(current)[:repeats])


@dataclass(frozen=True)
class Verdict:
    """``winner`` is None where nothing meets the bounds; ``nearest`` comes nearest to them.
    ``missed`` won, and then missed the bounds when it was measured again.
    """

    winner: Outcome | None
    current: Outcome | None
    confirmation: Confirmation | None
    nearest: Outcome | None
    missed: Sequence[Outcome] = ()

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
    winner, current, near = verdict.winner, verdict.current, verdict.nearest
    for each in verdict.missed:
        yield f"trial {each.number} won, but missed the bounds when it was measured again"
    if winner is not None and winner.number == 0:
        yield "the current settings are the best that was found"
    elif winner is not None:
        yield f"best: trial {winner.number}: {settings_text(winner.settings)}"
        if current is None or current.state == "failed":
            yield "the current settings could not be measured"
            return
        if not goal.is_met(current.measurement):
            yield "the current settings miss the bounds"
        yield (
            verdict.confirmation.told(goal)
            if verdict.confirmation
            else "not measured again: whether it is better than the current settings is not known"
        )
    elif near is not None:
        yield f"nothing meets the bounds ({goal.describe()})"
        yield f"nearest: trial {near.number}: {settings_text(near.settings)}"
    else:
        yield "nothing could be measured: see why each trial failed"
