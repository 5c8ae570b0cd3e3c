"""Counts each arm's requests by outcome, and how long they took. Knows nothing of how requests
reach an arm.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping

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


class ArmMetrics:
    """The counts of each arm since the model's load. Every method may be called from any thread."""

    def __init__(self) -> None:
        self._outcomes: dict[str, Counter[str]] = {}
        self._durations: dict[str, Histogram] = {}
        self._lock = threading.Lock()

    def begin(self, arm: str) -> None:
        """Publishes an arm from here on, with zeros."""
        with self._lock:
            self._outcomes.setdefault(arm, Counter(dict.fromkeys(_OUTCOMES, 0)))
            self._durations.setdefault(arm, Histogram(SECONDS))

    def ended(self, arm: str, outcome: str, seconds: float | None = None) -> None:
        """Counts a request, and its duration if it was answered."""
        with self._lock:
            self._outcomes[arm][outcome] += 1
            if seconds is not None:
                self._durations[arm].observe(seconds)

    def names(self) -> list[str]:
        with self._lock:
            return list(self._outcomes)

    def families(self) -> Iterator[Family]:
        """Requests and durations, for MetricsPublisher."""
        with self._lock:
            samples = [
                Sample({"arm": arm, "outcome": outcome}, float(number))
                for arm, outcomes in self._outcomes.items()
                for outcome, number in outcomes.items()
            ]
            durations: dict[tuple[tuple[str, str], ...], Histogram] = {
                (("arm", arm),): found for arm, found in self._durations.items()
            }
            text = "Requests of each arm, by how they ended"
            yield Family("hf_triton_arm_requests_total", text, True, tuple(samples))
            text = "Seconds from a request to the whole answer of its arm"
            yield from histogram_families("hf_triton_arm_duration_seconds", text, durations)


class CountedResponder:
    """Passes responses on to ``inner``, and counts the request of an arm once it has ended."""

    def __init__(self, inner: Responder, metrics: ArmMetrics, arm: str) -> None:
        self.request_id, self.is_cancelled = inner.request_id, inner.is_cancelled
        self._inner, self._metrics, self._arm = inner, metrics, arm
        self._began_s = time.monotonic()
        self._open = [True]  # pop is atomic: the thread that gets the item counts

    def send(self, outputs: Mapping[str, Array], *, final: bool) -> None:
        if final:
            self._end("answered", time.monotonic() - self._began_s)
        self._inner.send(outputs, final=final)

    def fail(self, error: Exception) -> None:
        self._end(_BY_STATUS.get(status_and_text(error)[0], "failed"), None)
        self._inner.fail(error)

    def _end(self, outcome: str, seconds: float | None) -> None:
        try:
            self._open.pop()
        except IndexError:
            return  # counted before
        self._metrics.ended(self._arm, outcome, seconds)
