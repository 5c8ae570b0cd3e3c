"""The settings that are tried: which keys, which values each, and what the optimiser calls them.

Every key has a list of values, the current one always among them; numbers are known to the
optimiser by their place in the list, so that it sees their order. Knows no model and no server.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import optuna

from perf.report.schema import Value

Settings = Mapping[str, Value]
Frozen = tuple[tuple[str, Value], ...]


@dataclass(frozen=True)
class Dimension:
    """One key of models.yaml and the values to try: numbers in order, ``None`` before them."""

    key: str
    values: tuple[Value, ...]

    @classmethod
    def of(cls, key: str, values: Sequence[Value], current: Value) -> Dimension:
        """With the current value among them, each once, numbers in their order."""
        distinct = list(dict.fromkeys([*values, current]))
        if all(each is None or _is_number(each) for each in distinct):
            distinct.sort(key=lambda each: -math.inf if each is None else float(each))
        return cls(key, tuple(distinct))

    @property
    def is_ordered(self) -> bool:
        """Whether neighbours in the list are likely to behave alike."""
        texts = [each for each in self.values if isinstance(each, str)]
        return any(map(_is_number, self.values)) and not texts

    def suggest(self, trial: optuna.Trial) -> Value:
        """What the optimiser chooses."""
        if self.is_ordered:
            return self.values[trial.suggest_int(self.key, 0, len(self.values) - 1)]
        chosen: Value = trial.suggest_categorical(self.key, self.values)
        return chosen

    def param(self, value: Value) -> Value:
        """What the optimiser calls a value."""
        return self.values.index(value) if self.is_ordered else value


@dataclass(frozen=True)
class Space:
    """``dimensions`` vary, ``fixed`` do not; ``current`` has a value for every key of both."""

    dimensions: tuple[Dimension, ...]
    current: Settings
    fixed: Settings = field(default_factory=dict)

    def suggest(self, trial: optuna.Trial) -> dict[str, Value]:
        return {**self.fixed, **{each.key: each.suggest(trial) for each in self.dimensions}}

    def params(self, settings: Settings) -> dict[str, Value]:
        """What the optimiser calls these settings."""
        return {each.key: each.param(settings[each.key]) for each in self.dimensions}

    def at(self, index: int) -> dict[str, Value]:
        """One of all combinations."""
        settings = dict(self.fixed)
        for each in self.dimensions:
            index, place = divmod(index, len(each.values))
            settings[each.key] = each.values[place]
        return settings

    def __len__(self) -> int:
        return math.prod(len(each.values) for each in self.dimensions)


def frozen(settings: Settings) -> Frozen:
    """Settings as something that can be looked up."""
    return tuple(sorted(settings.items()))


def _is_number(value: Value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
