"""The metrics that models.yaml declares for hooks, and ``observe``, by which hooks count them.

Only keeps the numbers: publishing.py publishes them. Knows nothing of requests.
"""

from __future__ import annotations

import contextlib
import contextvars
import math
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
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
    """One metric of models.yaml. ``type`` is counter, gauge or histogram; ``buckets`` are the
    histogram's upper bounds, ascending.
    """

    name: str
    type: str
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


@dataclass
class _Series:
    """The numbers of one metric by their labels, sorted (name, value) pairs."""

    metric: Metric
    numbers: dict[Labels, float] = field(default_factory=dict)
    histograms: dict[Labels, Histogram] = field(default_factory=dict)
    is_full: bool = False

    def __post_init__(self) -> None:
        if not self.metric.labels:  # published as 0 from the load on
            self._start(())

    @property
    def limit(self) -> int:
        """The most sets of labels that are counted separately."""
        return min(MAX_LABEL_SETS, MAX_NUMBERS // (len(self.metric.buckets) + 3))

    def pairs(self, labels: Mapping[str, str]) -> Labels:
        """The labels to count under: OTHER for a new set beyond the limit."""
        pairs = tuple(sorted(labels.items()))
        if pairs in self.numbers or pairs in self.histograms:
            return pairs
        if len(self.numbers) + len(self.histograms) >= self.limit:
            pairs = tuple((name, OTHER) for name, _ in pairs)
            self._warn_once()
        if pairs not in self.numbers and pairs not in self.histograms:
            self._start(pairs)
        return pairs

    def add(self, pairs: Labels, value: float) -> None:
        if self.metric.type == "histogram":
            self.histograms[pairs].observe(value)
        elif self.metric.type == "gauge":
            self.numbers[pairs] = value
        else:
            self.numbers[pairs] += value

    def families(self) -> Iterator[Family]:
        metric = self.metric
        if metric.type == "histogram":
            for family in histogram_families(metric.name, metric.help, self.histograms):
                # A sum of negative values falls, which Triton's counters refuse.
                yield replace(family, counter=not family.name.endswith("_sum"))
        else:
            samples = tuple(Sample(dict(pairs), n) for pairs, n in self.numbers.items())
            yield Family(metric.name, metric.help, metric.type == "counter", samples)

    def _start(self, pairs: Labels) -> None:
        if self.metric.type == "histogram":
            self.histograms[pairs] = Histogram(self.metric.buckets)
        else:
            self.numbers[pairs] = 0.0

    def _warn_once(self) -> None:
        if not self.is_full:
            self.is_full = True
            log.warn(
                f"metric {self.metric.name} has {self.limit} sets of labels; more are counted "
                f"under {OTHER!r}"
            )


class Observations:
    """The values that one model's hooks have observed since its load. Every method may be called
    from any thread.
    """

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
        texts = _label_texts(series.metric, labels)
        with self._lock:
            series.add(series.pairs(texts), number)

    def families(self) -> list[Family]:
        """Every metric with its numbers, for MetricsPublisher."""
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
    given. Works inside ``preprocess`` and ``postprocess`` only.

    Raises:
        HookError: no such metric or label, or a value that is no finite number; the request fails.
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


def _label_texts(metric: Metric, labels: Mapping[str, Any]) -> dict[str, str]:
    if set(labels) != set(metric.labels):
        got, declared = (", ".join(sorted(names)) or "none" for names in (labels, metric.labels))
        raise HookError(f"observe: {metric.name}: got labels {got}; declared: {declared}")
    return {name: _label_text(value) for name, value in labels.items()}


def _label_text(value: object) -> str:
    text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    return text[:MAX_LABEL_CHARACTERS]
