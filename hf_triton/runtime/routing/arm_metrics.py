"""Counts each arm's requests by outcome, and how long they took; metrics/publishing.py publishes.

Knows nothing of how requests reach an arm.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from ..metrics.histogram import SECONDS, Histogram, histogram_families
from ..metrics.publishing import Family, Sample
from ..request.responder import Array, Responder, status_and_text

_OUTCOMES = ("answered", "refused", "unavailable", "failed", "cancelled", "fallback")
_BY_STATUS = {
    "INVALID_ARG": "refused",
    "UNSUPPORTED": "refused",
    "NOT_FOUND": "refused",
    "UNAVAILABLE": "unavailable",
    "CANCELLED": "cancelled",
}


def outcome_of(error: Exception) -> str:
    """The outcome of a request that was answered with an error."""
    return _BY_STATUS.get(status_and_text(error)[0], "failed")


@dataclass
class _Series:
    """The numbers of one arm."""

    outcomes: dict[str, int]
    durations: Histogram = field(default_factory=lambda: Histogram(SECONDS))


class ArmMetrics:
    """The counts of each arm since the model's load. Every method may be called from any thread."""

    def __init__(self) -> None:
        self._arms: dict[str, _Series] = {}
        self._lock = threading.Lock()

    def begin(self, arm: str) -> None:
        """Publishes an arm from here on, with zeros."""
        with self._lock:
            self._of(arm)

    def ended(self, arm: str, outcome: str, seconds: float | None = None) -> None:
        """Counts a request, and its duration if it was answered."""
        with self._lock:
            series = self._of(arm)
            series.outcomes[outcome] = series.outcomes.get(outcome, 0) + 1
            if seconds is not None:
                series.durations.observe(seconds)

    def names(self) -> list[str]:
        """Every arm that was ever counted."""
        with self._lock:
            return list(self._arms)

    def families(self) -> Iterator[Family]:
        """Requests and durations, for MetricsPublisher."""
        with self._lock:
            samples = [
                Sample({"arm": arm, "outcome": outcome}, float(number))
                for arm, series in self._arms.items()
                for outcome, number in series.outcomes.items()
            ]
            durations: dict[tuple[tuple[str, str], ...], Histogram] = {
                (("arm", arm),): series.durations for arm, series in self._arms.items()
            }
            text = "Requests of each arm, by how they ended"
            yield Family("hf_triton_arm_requests_total", text, True, tuple(samples))
            text = "Seconds from a request to the whole answer of its arm"
            yield from histogram_families("hf_triton_arm_duration_seconds", text, durations)

    def _of(self, arm: str) -> _Series:
        if arm not in self._arms:
            self._arms[arm] = _Series(dict.fromkeys(_OUTCOMES, 0))
        return self._arms[arm]


class CountedResponder:
    """Passes responses on to ``inner``, and calls ``on_end`` once: with the request's outcome, and
    the seconds it took if it was answered.
    """

    def __init__(self, inner: Responder, on_end: Callable[[str, float | None], None]) -> None:
        self.request_id = inner.request_id
        self._inner = inner
        self._on_end = on_end
        self._began_s = time.monotonic()
        self._open = [True]  # pop is atomic: the thread that gets the item counts

    def send(self, outputs: Mapping[str, Array], *, final: bool) -> None:
        if final:
            self._end("answered", time.monotonic() - self._began_s)
        self._inner.send(outputs, final=final)

    def fail(self, error: Exception) -> None:
        self._end(outcome_of(error), None)
        self._inner.fail(error)

    def is_cancelled(self) -> bool:
        return self._inner.is_cancelled()

    def _end(self, outcome: str, seconds: float | None) -> None:
        try:
            self._open.pop()
        except IndexError:
            return  # counted before
        self._on_end(outcome, seconds)
