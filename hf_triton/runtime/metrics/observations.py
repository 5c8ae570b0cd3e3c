"""The metrics that models.yaml declares for hooks, and ``observe``, by which hooks count them.

Only keeps the numbers: publishing.py publishes them. Knows nothing of requests.
"""

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
    """One metric of models.yaml. ``type`` is counter, gauge or histogram; ``buckets`` are the
    histogram's upper bounds, ascending.
    """

    name: str
    type: str
    help: str
    labels: Sequence[str] = ()
    buckets: Sequence[float] = ()


class _Series:
    """The numbers of one metric by their labels, sorted (name, value) pairs."""

    def __init__(self, metric: Metric) -> None:
        self.metric = metric
        self._numbers: dict[Labels, float] = {}
        self._histograms: dict[Labels, Histogram] = {}
        # The most sets of labels that are counted separately.
        self._limit = min(MAX_LABEL_SETS, MAX_NUMBERS // (len(metric.buckets) + 3))
        self._is_full = False
        if not metric.labels:  # published as 0 from the load on
            self._start(())

    def add(self, labels: Mapping[str, str], value: float) -> None:
        """Counts under OTHER for a new set of labels beyond the limit."""
        pairs = tuple(sorted(labels.items()))
        known = self._histograms if self.metric.type == "histogram" else self._numbers
        if pairs not in known and len(known) >= self._limit:
            pairs = tuple((name, OTHER) for name, _ in pairs)
            self._warn_once()
        if pairs not in known:
            self._start(pairs)
        if self.metric.type == "histogram":
            self._histograms[pairs].observe(value)
        else:
            before = self._numbers[pairs] if self.metric.type == "counter" else 0.0
            self._numbers[pairs] = before + value

    def families(self) -> Iterator[Family]:
        metric = self.metric
        if metric.type == "histogram":
            for family in histogram_families(metric.name, metric.help, self._histograms):
                # A sum of negative values falls, which Triton's counters refuse.
                yield replace(family, counter=not family.name.endswith("_sum"))
        else:
            samples = tuple(Sample(dict(pairs), n) for pairs, n in self._numbers.items())
            yield Family(metric.name, metric.help, metric.type == "counter", samples)

    def _start(self, pairs: Labels) -> None:
        if self.metric.type == "histogram":
            self._histograms[pairs] = Histogram(tuple(self.metric.buckets))
        else:
            self._numbers[pairs] = 0.0

    def _warn_once(self) -> None:
        if not self._is_full:
            self._is_full = True
            log.warn(
                f"metric {self.metric.name} has {self._limit} sets of labels; more are counted "
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
            series.add(texts, number)

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
