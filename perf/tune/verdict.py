"""What a search came to, in words: the winner, how far it is from what was, and whether that is
more than noise. Measures nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from perf.tune.confirm import ENOUGH, Confirmation
from perf.tune.goal import Goal
from perf.tune.ranking import settings_text
from perf.tune.trials import Outcome


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
