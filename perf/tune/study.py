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
from typing import cast

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from perf.report.schema import Measurement, append, read_measurements
from perf.tune.goal import Goal
from perf.tune.settings.space import Frozen, Settings, Space, frozen
from perf.tune.trials import Bench, Outcome, State, TrialError

JOURNAL_FILE = "optuna.journal"
SHORT_SHARE = 1 / 3  # of a trial's seconds, for the first look
MAX_FAILURES = 3  # in a row with nothing measured before: the model does not load at all
_STUDY = "tune"
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
        storage = JournalStorage(JournalFileBackend(str(journal)))
        self._study = optuna.create_study(
            study_name=_STUDY,
            storage=storage,
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
        return [
            Outcome(number, cast(State, trial.user_attrs[_STATE]), lines[trial.user_attrs[_LINE]])
            for number, trial in enumerate(self._ended())
        ]

    def run(self) -> str:
        """Goes on until the search ends; returns why it did. Raises OSError, KeyboardInterrupt."""
        self._take_up()
        deadline = time.monotonic() + 60 * (self.effort.minutes or float("inf"))
        while True:
            reason = self._end(self.outcomes(), deadline)
            if reason:
                return reason
            trial = self._next()
            if trial is None:
                return "every combination was tried"
            self.tell(self._try(trial))

    def _take_up(self) -> None:
        """What was interrupted is tried again; a search begins with what is current."""
        for trial in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            self._study.tell(trial.number, state=TrialState.FAIL)
            if trial.params and _CURRENT not in trial.user_attrs:
                self._study.enqueue_trial(trial.params)
        waiting = self._study.get_trials(deepcopy=False, states=(TrialState.WAITING,))
        if not self._ended() and not waiting:
            params = self.space.params(self.space.current)
            self._study.enqueue_trial(params, user_attrs={_CURRENT: True})

    def _end(self, outcomes: list[Outcome], deadline: float) -> str | None:
        effort = self.effort
        if len(outcomes) >= effort.trials:
            return f"{effort.trials} trials"
        if time.monotonic() >= deadline:
            return f"{effort.minutes:g} minutes"
        if len(outcomes) >= MAX_FAILURES and all(each.state == "failed" for each in outcomes):
            return f"{len(outcomes)} trials, all failed"
        if effort.patience and _num_since_best(outcomes, self.goal) >= effort.patience:
            return f"{effort.patience} trials without a better one"
        return None

    def _next(self) -> optuna.Trial | None:
        """A trial of settings that are not known yet; None where there are none left."""
        known = {frozen(each.settings) for each in self.outcomes()}
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
        if len(self.space) > _NUM_DRAWN:
            yield from (self.space.draw(self._draw) for _ in range(_NUM_DRAWN))
        else:
            every = list(self.space.all_settings())
            yield from self._draw.sample(every, len(every))

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

    def _try(self, trial: optuna.Trial) -> Outcome:
        settings = self._settings(trial)
        try:
            with self.bench.serving(settings) as measure:
                first = measure(self.effort.seconds * SHORT_SHARE)
                trial.report(self.goal.early_score(first), step=1)
                if trial.should_prune():
                    return self._ended_with(trial, "stopped early", first)
                return self._ended_with(trial, "measured", measure(self.effort.seconds))
        except TrialError as error:
            return self._ended_with(trial, "failed", self.bench.failed(settings, str(error)))

    def _ended_with(self, trial: optuna.Trial, state: State, measurement: Measurement) -> Outcome:
        """Records the measurement, then tells the optimiser."""
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
        return Outcome(len(self._ended()) - 1, state, measurement)

    def _ended(self) -> list[optuna.trial.FrozenTrial]:
        trials = self._study.get_trials(
            deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED)
        )
        return [trial for trial in trials if _LINE in trial.user_attrs]


def _cut_to_whole_lines(journal: Path) -> None:
    """Of a process that was killed, or whose disk was full, the last line may be half a one."""
    if not journal.exists():
        return
    with journal.open("rb+") as file:
        file.truncate(file.read().rfind(b"\n") + 1)


def _num_since_best(outcomes: list[Outcome], goal: Goal) -> int:
    measured = [each for each in outcomes if each.state == "measured"]
    if not measured:
        return 0
    best = min(measured, key=lambda each: goal.rank(each.measurement))
    return outcomes[-1].number - best.number
