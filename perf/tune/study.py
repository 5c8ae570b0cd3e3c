"""The search: asks Optuna for settings, measures them, tells it what came of it.

Each trial is measured briefly first; Optuna's median pruner stops what is worse than most were by
then. All that is known lies in the run's folder, so a search that was stopped goes on there.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from perf.report.schema import Measurement, append, read_measurements
from perf.tune.goal import Goal
from perf.tune.settings.space import Frozen, Settings, Space, frozen
from perf.tune.trials import Bench, Outcome, State, TrialError, ranked

JOURNAL_FILE = "optuna.journal"
SHORT_SHARE = 1 / 3  # of a trial's seconds, for the first look
MAX_FAILURES = 3  # in a row with nothing measured before: the model does not load at all
_LINE, _STATE = "line", "state"  # attributes of a trial: its line in measurements.jsonl
_CURRENT = "current"  # and, of the first, that it is what models.yaml says
_NUM_STARTUP = 5  # trials drawn at random before the model of the space is trusted
_NUM_ASKED = 6  # times that settings which were tried already may come up in a row
_NUM_DRAWN = 1000  # combinations that are looked at when the optimiser knows no new ones


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

    def __post_init__(self) -> None:
        optuna.logging.set_verbosity(logging.ERROR)
        journal = self.folder / JOURNAL_FILE
        _cut_to_whole_lines(journal)
        self._study = optuna.create_study(
            study_name="tune",
            storage=JournalStorage(JournalFileBackend(str(journal))),
            direction=self.goal.direction,
            load_if_exists=True,
            pruner=optuna.pruners.MedianPruner(n_startup_trials=_NUM_STARTUP),
        )
        # A search that goes on must not draw what it drew at its start once more.
        seed = self.seed + len(self._study.trials)
        self._study.sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=_NUM_STARTUP)
        self._draw = random.Random(seed)

    def outcomes(self) -> list[Outcome]:
        """Those of trials that have ended, in their order."""
        lines = read_measurements(self.folder)
        ended = (TrialState.COMPLETE, TrialState.PRUNED)
        trials = self._study.get_trials(deepcopy=False, states=ended)
        attributes = [trial.user_attrs for trial in trials if _LINE in trial.user_attrs]
        return [
            Outcome(number, each[_STATE], lines[each[_LINE]])
            for number, each in enumerate(attributes)
        ]

    def run(self) -> str:
        """Goes on until the search ends; returns why it did. Raises OSError, KeyboardInterrupt."""
        deadline = time.monotonic() + 60 * (self.effort.minutes or float("inf"))
        outcomes = self.outcomes()
        if not outcomes:
            now = self.space.params(self.space.current)
            self._study.enqueue_trial(now, user_attrs={_CURRENT: True})
        while not (reason := self._end(outcomes, deadline)):
            trial = self._next({frozen(each.settings) for each in outcomes})
            if trial is None:
                return "every combination was tried"
            self._try(trial)
            outcomes = self.outcomes()
            self.tell(outcomes[-1])
        return reason

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

    def _next(self, known: set[Frozen]) -> optuna.Trial | None:
        """A trial of settings that are not known yet; None where there are none left."""
        for _ in range(_NUM_ASKED):
            trial = self._study.ask()
            if self._is_new(self._settings(trial), known):
                return trial
            # Not told as a result, or what is good would count the more often it comes up.
            self._study.tell(trial, state=TrialState.FAIL)
        left = next((each for each in self._drawn() if self._is_new(each, known)), None)
        if left is None:
            return None
        self._study.enqueue_trial(self.space.params(left))
        return self._study.ask()

    def _drawn(self) -> Iterator[Settings]:
        """Combinations in random order: all of them, or many where there are too many."""
        size = len(self.space)
        return map(self.space.at, self._draw.sample(range(size), min(size, _NUM_DRAWN)))

    def _settings(self, trial: optuna.Trial) -> Settings:
        suggested = self.space.suggest(trial)
        return self.space.current if _CURRENT in trial.user_attrs else suggested

    def _is_new(self, settings: Settings, known: set[Frozen]) -> bool:
        key = frozen(settings)
        if key in known or key in self.refused:
            return False
        reason = self.bench.refusal(settings) if settings != self.space.current else None
        if reason is not None:
            self.refused[key] = reason
        return reason is None

    def _try(self, trial: optuna.Trial) -> None:
        settings = self._settings(trial)
        state: State = "stopped early"
        try:
            with self.bench.serving(settings) as measure:
                measured = measure(self.effort.seconds * SHORT_SHARE)
                trial.report(self.goal.early_score(measured), step=1)
                if not trial.should_prune():
                    measured, state = measure(self.effort.seconds), "measured"
        except TrialError as error:
            measured, state = self.bench.failed(settings, str(error)), "failed"
        self._record(trial, state, measured)

    def _record(self, trial: optuna.Trial, state: State, measurement: Measurement) -> None:
        """Keeps the measurement, then tells the optimiser."""
        line = len(read_measurements(self.folder))
        append(self.folder, measurement)
        trial.set_user_attr(_LINE, line)
        trial.set_user_attr(_STATE, state)
        for name, excess in self.goal.excess(measurement).items():
            trial.set_constraint(name, excess)
        value = self.goal.value(measurement)
        if state == "measured" and value == value:
            self._study.tell(trial, value)
        else:
            self._study.tell(trial, state=TrialState.PRUNED)


def _cut_to_whole_lines(journal: Path) -> None:
    """Cuts off half a last line, of a process that was killed or whose disk was full."""
    if journal.exists():
        with journal.open("rb+") as file:
            file.truncate(file.read().rfind(b"\n") + 1)
