"""The search: asks Optuna for settings, measures them, tells it what came of it; then the repeats
of what won, in turns with the current settings.

Each trial is measured briefly first, and stopped where that is worse than most were. All that is
known lies in the run's folder, so a search that was stopped goes on there.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Literal, Protocol

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.trial import create_trial

from perf.report.noise import Difference, difference
from perf.report.schema import Measurement, append, read_measurements
from perf.tune.bench import Measure, TrialError
from perf.tune.goal import Goal
from perf.tune.space import Settings, Space

SHORT_SHARE = 1 / 3  # of a trial's seconds, for the first look
MAX_FAILURES = 3  # in a row with nothing measured before: the model does not load at all
_NUM_STARTUP = 5  # trials drawn at random before the optimiser's model of the space is trusted
_NUM_ASKED = 6  # times that settings which were tried already may come up in a row
_NUM_DRAWN = 1000  # combinations that are looked at when the optimiser knows no new ones

State = Literal["measured", "stopped early", "failed"]
Frozen = tuple[tuple[str, object], ...]


class Trials(Protocol):
    """The part of a Bench that a search needs."""

    def refusal(self, settings: Settings) -> str | None: ...

    def failed(self, settings: Settings, reason: str) -> Measurement: ...

    def serving(self, settings: Settings) -> AbstractContextManager[Measure]: ...


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


def outcomes_in(folder: Path) -> list[Outcome]:
    """Those of trials, in their order: the first measurement of any settings."""
    lines = [each for each in read_measurements(folder) if each.repeat == 0]
    return [Outcome(number, each) for number, each in enumerate(lines)]


def measured(outcomes: Iterable[Outcome], goal: Goal) -> list[Outcome]:
    """Those that were measured whole, the best first."""
    whole = [each for each in outcomes if each.state == "measured"]
    return sorted(whole, key=lambda each: goal.loss(each.measurement))


@dataclass(frozen=True)
class Effort:
    """When a search ends: after so many trials, minutes, or trials without a better one."""

    trials: int
    seconds: float  # of a whole measurement
    minutes: float | None = None
    patience: int | None = None


@dataclass
class Search:
    """One search in one folder. ``tell`` is called with all outcomes after each, for a bar."""

    space: Space
    goal: Goal
    bench: Trials
    folder: Path
    effort: Effort
    seed: int
    tell: Callable[[Sequence[Outcome]], object] = lambda _: None
    refused: dict[Frozen, str] = field(default_factory=dict)

    def run(self) -> str:
        """Goes on until the search ends; returns why it did. Raises OSError, KeyboardInterrupt."""
        optuna.logging.set_verbosity(logging.ERROR)
        deadline = time.monotonic() + 60 * (self.effort.minutes or float("inf"))
        outcomes = outcomes_in(self.folder)
        # A search that goes on must not draw what it drew at its start once more.
        seed = self.seed + len(outcomes)
        sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=_NUM_STARTUP)
        study = optuna.create_study(sampler=sampler)
        self._draw, self._looks = random.Random(seed), list[float]()
        for each in outcomes:
            self._told(study, each)
        while not (reason := self._end(outcomes, deadline)):
            settings = self._next(study, {_frozen(each.settings) for each in outcomes})
            if settings is None:
                return "every combination was tried"
            append(self.folder, self._tried(settings))
            outcomes = outcomes_in(self.folder)
            self._told(study, outcomes[-1])
            self.tell(outcomes)
        return reason

    def _distributions(self) -> dict[str, BaseDistribution]:
        """The places of values: of numbers the optimiser sees the order."""
        found: dict[str, BaseDistribution] = {}
        for key, values in self.space.dimensions.items():
            count = len(values)
            has_order = all(each is None or type(each) in (int, float) for each in values)
            found[key] = (
                IntDistribution(0, count - 1)
                if has_order
                else CategoricalDistribution(range(count))
            )
        return found

    def _told(self, study: optuna.Study, outcome: Outcome) -> None:
        if outcome.state != "failed":
            params, loss = (
                self.space.params(outcome.settings),
                self.goal.loss(outcome.measurement),
            )
            study.add_trial(
                create_trial(params=params, distributions=self._distributions(), value=loss)
            )

    def _end(self, outcomes: list[Outcome], deadline: float) -> str | None:
        effort, number = self.effort, len(outcomes)
        best = measured(outcomes, self.goal)[:1]
        since_best = outcomes[-1].number - best[0].number if best else 0
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
        for _ in range(_NUM_ASKED):
            trial = study.ask(self._distributions())
            # Its result comes as a trial of its own: what comes up often would count often.
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
            settings = self.space.settings(trial.params)
            if self._is_new(settings, known):
                return settings
        size = len(self.space)
        drawn = map(self.space.at, self._draw.sample(range(size), min(size, _NUM_DRAWN)))
        return next((each for each in drawn if self._is_new(each, known)), None)

    def _is_new(self, settings: Settings, known: set[Frozen]) -> bool:
        key = _frozen(settings)
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


def _frozen(settings: Settings) -> Frozen:
    """Settings as something that can be looked up."""
    return tuple(sorted(settings.items()))


@dataclass(frozen=True)
class Confirmation:
    """The repeats of the winner and of the current settings, made in turns."""

    winner: Sequence[Measurement]
    current: Sequence[Measurement]

    def meets(self, goal: Goal) -> bool:
        """Whether the winner keeps to the bounds in most of its runs."""
        return sum(map(goal.is_met, self.winner)) * 2 > len(self.winner)

    def is_better(self, goal: Goal) -> bool:
        """Whether the winner is better by more than the repeats scatter."""
        found = self._difference(goal)
        if found is None or found.is_noise:
            return False
        return (found.log_ratio > 0) is (goal.wanted == "throughput")

    def told(self, goal: Goal) -> str:
        """For people: the ratio, where it lies with 95 %, and whether it is noise."""
        found = self._difference(goal)
        if found is None:
            return "could not be measured again"
        what = "throughput" if goal.wanted == "throughput" else "p99 latency"
        times, interval = f"{found.ratio:.2f} times the current settings' {what}", found.interval()
        if interval is None:
            return f"{times}: too few repeats to tell that from noise (--repeats 3)"
        beyond = "beyond noise" if self.is_better(goal) else "worse, beyond noise"
        said = "within noise" if found.is_noise else beyond
        return f"{times} ({interval[0]:.2f} to {interval[1]:.2f}): {said}"

    def _difference(self, goal: Goal) -> Difference | None:
        current, winner = ([*map(goal.value, each)] for each in (self.current, self.winner))
        return difference(current, winner)


def in_turns(
    bench: Trials,
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
