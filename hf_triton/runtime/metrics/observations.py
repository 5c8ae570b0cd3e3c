"""The metrics that models.yaml declares for hooks, and ``observe``, by which hooks count them."""

from __future__ import annotations

import contextlib
import contextvars
import math
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, SupportsFloat

from .. import log
from ..errors import HookError
from .histogram import Histogram, histogram_families
from .publishing import Family, Sample

MAX_LABEL_SETS = 1000
MAX_NUMBERS = 10_000  # of one metric: a histogram has several for each set of labels
MAX_LABEL_CHARACTERS = 200
# The value of every label of a set beyond the limit: a hook that puts a text or a user into a label
# must not grow Triton's /metrics, and its memory, without end.
OTHER = "other"

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


class _Series:
    """The values of one metric by their labels; a counter's or a gauge's number is a sum."""

    def __init__(self, metric: Metric) -> None:
        self.metric = metric
        self._values: dict[Labels, Histogram] = {}
        # The most sets of labels that are counted separately.
        self._limit = min(MAX_LABEL_SETS, MAX_NUMBERS // (len(metric.buckets) + 3))
        self._is_full = False
        if not metric.labels:  # published as 0 from the load on
            self._values[()] = Histogram(tuple(metric.buckets))

    def add(self, labels: Mapping[str, str], value: float) -> None:
        """Counts under OTHER for a new set of labels beyond the limit."""
        pairs = tuple(sorted(labels.items()))
        if pairs not in self._values and len(self._values) >= self._limit:
            pairs = tuple((name, OTHER) for name, _ in pairs)
            if not self._is_full:
                log.warn(
                    f"metric {self.metric.name} has {self._limit} sets of labels; more are counted "
                    f"under {OTHER!r}"
                )
            self._is_full = True
        found = self._values.setdefault(pairs, Histogram(tuple(self.metric.buckets)))
        if self.metric.type == "gauge":
            found.sum = 0.0
        found.observe(value)

    def families(self) -> Iterator[Family]:
        metric = self.metric
        if metric.type == "histogram":
            for family in histogram_families(metric.name, metric.help, self._values):
                # A sum of negative values falls, which Triton's counters refuse.
                falls = metric.may_fall and family.name.endswith("_sum")
                yield replace(family, counter=not falls)
        else:
            samples = tuple(Sample(dict(pairs), found.sum) for pairs, found in self._values.items())
            yield Family(metric.name, metric.help, metric.type == "counter", samples)


class Observations:
    """What a model's hooks have observed since its load; safe from any thread."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._series = {metric.name: _Series(metric) for metric in metrics}
        self._lock = threading.Lock()

    def observe(self, name: str, value: Any, labels: Mapping[str, Any]) -> None:
        """Counts one value. Raises HookError for what models.yaml does not declare."""
        series = self._series.get(name)
        if series is None:
            known = ", ".join(self._series) or "none"
            raise HookError(f"observe: metric {name!r} is not declared; metrics: has {known}")
        number = _number(series.metric, value)
        if set(labels) != set(series.metric.labels):
            both = labels, series.metric.labels
            got, declared = (", ".join(sorted(names)) or "none" for names in both)
            raise HookError(f"observe: {name}: got labels {got}; declared: {declared}")
        texts = {label: _label_text(given) for label, given in labels.items()}
        with self._lock:
            series.add(texts, number)

    def families(self) -> list[Family]:
        with self._lock:
            return [family for series in self._series.values() for family in series.families()]

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
    """Half of a pair of surrogates, as JSON can hold it, is no text that Triton takes."""
    encoded = value if isinstance(value, bytes) else str(value).encode(errors="replace")
    return encoded.decode(errors="replace")[:MAX_LABEL_CHARACTERS]
