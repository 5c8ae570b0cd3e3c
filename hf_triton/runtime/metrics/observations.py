"""The metrics that models.yaml declares for hooks, and ``observe``, by which hooks count them."""

from __future__ import annotations

import contextlib
import contextvars
import math
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, SupportsFloat

from ..errors import HookError
from .publishing import Family, Histogram, Sample, histogram_families

MAX_LABEL_CHARACTERS = 200
Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Metric:
    """``type`` is counter, gauge or histogram; ``buckets`` are upper bounds, ascending.
    ``may_fall``: values of a histogram may be negative.
    """

    name: str
    type: str
    help: str
    labels: Sequence[str] = ()
    buckets: Sequence[float] = ()
    may_fall: bool = True


class Observations:
    """The values of declared metrics since a model's load; safe from any thread."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = {metric.name: metric for metric in metrics}
        self._values: dict[str, dict[Labels, Histogram]] = {name: {} for name in self._metrics}
        for metric in self._metrics.values():
            if not metric.labels:  # published as 0 from the load on
                self._values[metric.name][()] = Histogram(tuple(metric.buckets))
        self._lock = threading.Lock()

    def observe(self, name: str, value: Any, labels: Mapping[str, Any]) -> None:
        """Counts one value. Raises HookError for what models.yaml does not declare."""
        metric = self._metrics.get(name)
        if metric is None:
            known = ", ".join(self._metrics) or "none"
            raise HookError(f"observe: metric {name!r} is not declared; metrics: has {known}")
        number = _number(metric, value)
        if set(labels) != set(metric.labels):
            both = labels, metric.labels
            got, declared = (", ".join(sorted(names)) or "none" for names in both)
            raise HookError(f"observe: {name}: got labels {got}; declared: {declared}")
        pairs = tuple(sorted((label, _label_text(given)) for label, given in labels.items()))
        with self._lock:
            found = self._values[name].setdefault(pairs, Histogram(tuple(metric.buckets)))
            if metric.type == "gauge":
                found.sum = 0.0
            found.observe(number)

    def families(self) -> list[Family]:
        with self._lock:
            values = self._values.items()
            return [family for name, found in values for family in self._families_of(name, found)]

    def _families_of(self, name: str, values: Mapping[Labels, Histogram]) -> Iterator[Family]:
        metric = self._metrics[name]
        if metric.type == "histogram":
            for family in histogram_families(name, metric.help, values):
                # A sum of negative values falls, which Triton's counters refuse.
                falls = metric.may_fall and family.name.endswith("_sum")
                yield replace(family, counter=not falls)
        else:
            samples = tuple(Sample(dict(pairs), found.sum) for pairs, found in values.items())
            yield Family(name, metric.help, metric.type == "counter", samples)

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Makes ``observe`` count here, for calls of the current thread inside the context."""
        token = _active.set(self)
        try:
            yield
        finally:
            _active.reset(token)


_active: contextvars.ContextVar[Observations | None] = contextvars.ContextVar(
    "hf_triton_observations", default=None
)


def observe(name: str, value: SupportsFloat = 1, /, **labels: object) -> None:
    """Adds to a counter, sets a gauge, or counts one value of a histogram.

    ``metrics:`` in models.yaml declares the metric and its labels; every declared label must be
    given. Works inside ``preprocess`` and ``postprocess`` only. Raises HookError: no such metric or
    label, or a value that is no finite number; the request fails.
    """
    observations = _active.get()
    if observations is None:
        raise HookError("observe: called outside of preprocess and postprocess")
    observations.observe(name, value, labels)


def _number(metric: Metric, value: Any) -> float:
    try:
        number = math.nan if isinstance(value, str | bytes) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        got = type(value).__name__ if math.isnan(number) else str(number)
        raise HookError(f"observe: {metric.name}: got {got}, allowed: a finite number")
    if metric.type == "counter" and number < 0:
        raise HookError(f"observe: {metric.name}: got {number:g}, a counter only grows")
    return number


def _label_text(value: object) -> str:
    """Replaces halves of surrogate pairs, which JSON can hold and Triton refuses."""
    encoded = value if isinstance(value, bytes) else str(value).encode(errors="replace")
    return encoded.decode(errors="replace")[:MAX_LABEL_CHARACTERS]
