"""One way of measuring settings, and what a search remembers of each. Knows no optimiser."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal, Protocol

from perf.report.schema import Measurement
from perf.tune.goal import Goal
from perf.tune.settings.space import Settings

Measure = Callable[[float], Measurement]
"""Measures for so many seconds. Raises ``TrialError``."""
State = Literal["measured", "stopped early", "failed"]


class TrialError(Exception):
    """These settings can't be measured: its text says why, in one line."""


class Bench(Protocol):
    """Where settings are measured."""

    def refusal(self, settings: Settings) -> str | None:
        """Why these settings need not be tried: not allowed together, or more than memory holds."""

    def show_to(self, show: Callable[[str], object]) -> None:
        """Whom it tells what it does, from now on."""

    def failed(self, settings: Settings, reason: str) -> Measurement:
        """The record of settings that could not be measured."""

    def serving(self, settings: Settings) -> AbstractContextManager[Measure]:
        """The model with these settings, ready. Raises ``TrialError``."""


@dataclass(frozen=True)
class Outcome:
    """What became of a trial; of one that failed, ``measurement.first_error`` says why."""

    number: int  # 0 is the current settings
    state: State
    measurement: Measurement

    @property
    def settings(self) -> Settings:
        return self.measurement.load.settings


def ranked(outcomes: Iterable[Outcome], goal: Goal) -> list[Outcome]:
    """Those with figures, the best first: all that were measured whole before those that were
    stopped early.
    """
    kept = [each for each in outcomes if each.state != "failed"]
    return sorted(kept, key=lambda each: (each.state != "measured", goal.rank(each.measurement)))
