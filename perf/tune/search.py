"""The search: asks Optuna for settings, measures them, tells it what came of it; then the repeats
of what won, in turns with the current settings.

Each trial is measured briefly first, and stopped where that is worse than most were. All that is
known lies in the run's folder, so a search that was stopped goes on there.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Literal, Protocol

import optuna
from optuna.trial import create_trial

from perf.report.schema import Measurement, append, read_measurements
from perf.tune.goal import Goal
from perf.tune.space import Frozen, Settings, Space, frozen, settings_text

SHORT_SHARE = 1 / 3  # of a trial's seconds, for the first look
MAX_FAILURES = 3  # in a row with nothing measured before: the model does not load at all
ENOUGH = 3  # runs of each, to tell anything from noise
_NUM_STARTUP = 5  # trials drawn at random before the optimiser's model of the space is trusted
_NUM_ASKED = 6  # times that settings which were tried already may come up in a row
_NUM_DRAWN = 1000  # combinations that are looked at when the optimiser knows no new ones

Measure = Callable[[float], Measurement]
"""Measures for so many seconds. Raises ``TrialError``."""
State = Literal["measured", "stopped early", "failed"]


class TrialError(Exception):
    """These settings can't be measured: its text says why, in one line."""


class Bench(Protocol):
    """Where settings are measured; numbers the repeats of the same settings."""

    def show_to(self, show: Callable[[str], object]) -> None:
        """Has ``show`` told what is being done from now on."""

    def refusal(self, settings: Settings) -> str | None:
        """Why these settings need not be tried: not allowed together, or more than memory holds."""

    def failed(self, settings: Settings, reason: str) -> Measurement:
        """The record of settings that could not be measured."""

    def serving(self, settings: Settings) -> AbstractContextManager[Measure]:
        """The model with these settings, ready. Raises ``TrialError``."""


@dataclass(frozen=True)
class Outcome:
    """A trial that ended; of one that failed, ``measurement.first_error`` says why."""

    number: int  # 0 is the current settings
    measurement: Measurement

    @property
    def state(self) -> State:
        if not self.measurement.num_requests and self.measurement.first_error:
            return "failed"
        return "measured" if self.measurement.stable else "stopped early"

    @property
    def settings(self) -> Settings:
        return self.measurement.load.settings


def ranked(outcomes: Iterable[Outcome], goal: Goal) -> list[Outcome]:
    """Those with figures, the best first: all that were measured whole before those that were
    stopped early.
    """
    kept = [each for each in outcomes if each.state != "failed"]
    return sorted(kept, key=lambda each: (each.state != "measured", goal.rank(each.measurement)))


@dataclass(frozen=True)
class Effort:
    """When a search ends: after so many trials, minutes, or trials without a better one."""

    trials: int
    seconds: float  # of a whole measurement
    minutes: float | None = None
    patience: int | None = None


@dataclass
class Search:
    """One search in one folder. ``tell`` is called with each outcome, for a progress bar."""

    space: Space
    goal: Goal
    bench: Bench
    folder: Path
    effort: Effort
    seed: int
    tell: Callable[[Outcome], object] = lambda _: None
    refused: dict[Frozen, str] = field(default_factory=dict)

    def outcomes(self) -> list[Outcome]:
        """Those of trials, in their order: the first measurement of any settings."""
        lines = [each for each in read_measurements(self.folder) if each.repeat == 0]
        return [Outcome(number, each) for number, each in enumerate(lines)]

    def run(self) -> str:
        """Goes on until the search ends; returns why it did. Raises OSError, KeyboardInterrupt."""
        optuna.logging.set_verbosity(logging.ERROR)
        deadline = time.monotonic() + 60 * (self.effort.minutes or float("inf"))
        outcomes = self.outcomes()
        # A search that goes on must not draw what it drew at its start once more.
        seed = self.seed + len(outcomes)
        sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=_NUM_STARTUP)
        study = optuna.create_study(sampler=sampler)
        self._draw, self._looks = random.Random(seed), list[float]()
        for each in outcomes:
            self._told(study, each)
        while not (reason := self._end(outcomes, deadline)):
            settings = self._next(study, {frozen(each.settings) for each in outcomes})
            if settings is None:
                return "every combination was tried"
            append(self.folder, self._tried(settings))
            outcomes = self.outcomes()
            self._told(study, outcomes[-1])
            self.tell(outcomes[-1])
        return reason

    def _told(self, study: optuna.Study, outcome: Outcome) -> None:
        """Has the optimiser know the outcome; one that breaks a bound is worse than all that meet
        every one.
        """
        if outcome.state == "failed":
            return
        distributions = {each.key: each.distribution for each in self.space.dimensions}
        params, value = self.space.params(outcome.settings), self.goal.loss(outcome.measurement)
        study.add_trial(create_trial(params=params, distributions=distributions, value=value))

    def _end(self, outcomes: list[Outcome], deadline: float) -> str | None:
        effort, number = self.effort, len(outcomes)
        measured = [each for each in ranked(outcomes, self.goal) if each.state == "measured"]
        since_best = outcomes[-1].number - measured[0].number if measured else 0
        if number >= effort.trials:
            return f"{effort.trials} trials"
        if time.monotonic() >= deadline:
            return f"{effort.minutes:g} minutes"
        if number >= MAX_FAILURES and all(each.state == "failed" for each in outcomes):
            return f"{number} trials, all failed"
        if effort.patience and since_best >= effort.patience:
            return f"{effort.patience} trials without a better one"
        return None

    def _next(self, study: optuna.Study, known: set[Frozen]) -> Settings | None:
        """Settings that are not known yet, the current ones first; None where none are left."""
        if not known:
            return self.space.current
        distributions = {each.key: each.distribution for each in self.space.dimensions}
        for _ in range(_NUM_ASKED):
            trial = study.ask(distributions)
            # Its result comes as a trial of its own: what comes up often would count often.
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
            settings = self.space.settings(trial.params)
            if self._is_new(settings, known):
                return settings
        return next((each for each in self._drawn() if self._is_new(each, known)), None)

    def _drawn(self) -> Iterator[Settings]:
        """Combinations in random order: all of them, or many where there are too many."""
        size = len(self.space)
        return map(self.space.at, self._draw.sample(range(size), min(size, _NUM_DRAWN)))

    def _is_new(self, settings: Settings, known: set[Frozen]) -> bool:
        key = frozen(settings)
        if key in known or key in self.refused:
            return False
        reason = self.bench.refusal(settings)
        if reason is not None:
            self.refused[key] = reason
        return reason is None

    def _tried(self, settings: Settings) -> Measurement:
        """The trial's measurement, not ``stable`` where it was stopped early."""
        try:
            with self.bench.serving(settings) as measure:
                looked = measure(self.effort.seconds * SHORT_SHARE)
                loss, others = self.goal.loss(looked), list(self._looks)
                self._looks.append(loss)
                if len(others) >= _NUM_STARTUP and loss > median(others):
                    return replace(looked, stable=False)
                return measure(self.effort.seconds)
        except TrialError as error:
            return self.bench.failed(settings, str(error))


@dataclass(frozen=True)
class Confirmation:
    """The repeats of the winner and of the current settings, made in turns."""

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
        load = outcome.measurement.load
        return [each for each in read_measurements(folder) if each.load == load and each.repeat]

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
