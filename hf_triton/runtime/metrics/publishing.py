"""Publishes a model's metrics on Triton's own ``/metrics``. Setting a metric is a round trip to the
server (44 microseconds on 24.10): a thread does so once a second.
"""

from __future__ import annotations

import ctypes
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from .. import log
from ..errors import reason
from ..repeating import Repeating

PUBLISH_EVERY_S = 1.0
_STILL_S = 0.02
Key = tuple[str, tuple[tuple[str, str], ...]]
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


@dataclass(frozen=True)
class Sample:
    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True)
class Family:
    """A metric family: a name and its samples; a gauge unless ``counter``."""

    name: str
    help: str
    counter: bool
    samples: tuple[Sample, ...]


def one_number(name: str, help_text: str, value: float, *, counter: bool = False) -> Family:
    return Family(name, help_text, counter, (Sample({}, float(value)),))


class Histogram:
    """The number of observations in each bucket; ``bounds`` are the buckets' upper bounds."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)  # the last one is beyond every bound
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


def histogram_families(
    name: str, help_text: str, histograms: Mapping[tuple[tuple[str, str], ...], Histogram]
) -> Iterator[Family]:
    """The counters of a histogram, which Triton's Python backend lacks before 25.x: ``_bucket``,
    ``_sum`` and ``_count``. The keys of ``histograms`` are their labels as sorted (name, value)
    pairs, () without labels.
    """
    buckets, sums, counts = [], [], []
    for pairs, histogram in histograms.items():
        labels = dict(pairs)
        bounds = [*(f"{bound:g}" for bound in histogram.bounds), "+Inf"]
        below = list(accumulate(histogram.counts))
        buckets += [
            Sample({**labels, "le": bound}, float(n))
            for bound, n in zip(bounds, below, strict=True)
        ]
        sums.append(Sample(labels, histogram.sum))
        counts.append(Sample(labels, float(below[-1])))
    yield Family(f"{name}_bucket", help_text, True, tuple(buckets))
    yield Family(f"{name}_sum", help_text, True, tuple(sums))
    yield Family(f"{name}_count", help_text, True, tuple(counts))


class MetricsPublisher:
    """Publishes ``collect()`` once a second, and a last time when it is closed: gauges are 0 then,
    because what they count is gone. Counts from before its start are not published.
    """

    def __init__(
        self, pb_utils: Any, labels: Mapping[str, str], collect: Callable[[], Iterable[Family]]
    ) -> None:
        self._pb_utils, self._labels, self._collect = pb_utils, dict(labels), collect
        self._families: dict[str, Any] = {}
        self._metrics: dict[Key, Any] = {}
        self._counted = _settled(collect)
        self._is_publishing = True
        self._thread = Repeating("metrics", self._try_publish)
        if self._try_publish() is not None:  # so that every metric is there from the load on
            self._thread.start()

    def close(self) -> None:
        """Ends the thread; metrics stay, see ``_keep_forever``."""
        self._thread.close()
        if self._is_publishing:
            self._try_publish(is_last=True)

    def _try_publish(self, *, is_last: bool = False) -> float | None:
        """Returns the seconds to the next time; None where the server takes none."""
        try:
            self._publish(is_last)
            return PUBLISH_EVERY_S
        except Exception as error:
            # A server without metrics (--allow-metrics=false), or one that is shutting down.
            log.warn(f"metrics are not published: {type(error).__name__}: {reason(error)}")
            self._is_publishing = False
            return None

    def _publish(self, is_last: bool) -> None:
        """Sets every gauge, as another process of the same version may have set it; adds their
        growth to counters.
        """
        for family in self._collect():
            for sample in family.samples:
                key = _key(family, sample)
                metric = self._metrics.get(key) or self._new_metric(family, sample, key)
                if not family.counter:
                    metric.set(0.0 if is_last else sample.value)
                elif grown_by := sample.value - self._counted.get(key, 0.0):
                    metric.increment(grown_by)
                    self._counted[key] = sample.value

    def _new_metric(self, family: Family, sample: Sample, key: Any) -> Any:
        if family.name not in self._families:
            kinds = self._pb_utils.MetricFamily
            kind = kinds.COUNTER if family.counter else kinds.GAUGE
            made = kinds(name=family.name, description=family.help, kind=kind)
            self._families[family.name] = _keep_forever(made)
        labels = {**self._labels, **sample.labels}
        metric = _keep_forever(self._families[family.name].Metric(labels=labels))
        self._metrics[key] = metric
        return metric


def _settled(collect: Callable[[], Iterable[Family]]) -> dict[Key, float]:
    """The counters once they stand still: a request may be answered before it is counted."""
    before: dict[Key, float] | None = None
    while (
        now := {_key(f, s): s.value for f in collect() if f.counter for s in f.samples}
    ) != before:
        before = now
        time.sleep(_STILL_S)
    return now


def _key(family: Family, sample: Sample) -> Key:
    return family.name, tuple(sorted(sample.labels.items()))


def _keep_forever(thing: Any) -> Any:
    """Keeps a metric or a family for ever, past the interpreter's end too.

    When one model deletes a family, Triton 24.10 frees it for all models, and crashes when another
    model, or the same one after a reload, writes to it. Kept, a reloaded model goes on counting
    from its last number.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))
    return thing
