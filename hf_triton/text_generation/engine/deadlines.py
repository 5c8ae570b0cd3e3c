"""Which sequences have run out of time; asked before every step, so it costs nothing while none
has.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from ..sequence.sequence import Sequence

_FEWEST_TO_CLEAR = 256


class Deadlines:
    """The deadlines of unfinished sequences, the next one first."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Sequence]] = []
        self._num_added = 0
        self._clear_at = _FEWEST_TO_CLEAR

    def add(self, sequences: Iterable[Sequence]) -> None:
        """Takes the sequences that have a deadline."""
        for sequence in sequences:
            if sequence.deadline_s is not None:
                self._num_added += 1  # no two alike, so that sequences are never compared
                heapq.heappush(self._heap, (sequence.deadline_s, self._num_added, sequence))
        if len(self._heap) > self._clear_at:
            self._heap = [item for item in self._heap if item[2].finish_reason is None]
            heapq.heapify(self._heap)
            self._clear_at = max(_FEWEST_TO_CLEAR, 2 * len(self._heap))

    @property
    def next_s(self) -> float | None:
        """The next deadline, of a sequence that may have ended; None without any."""
        return self._heap[0][0] if self._heap else None

    def passed(self, now_s: float) -> list[Sequence]:
        """The sequences whose deadline is not after ``now_s``; they are forgotten."""
        late = []
        while self._heap and self._heap[0][0] <= now_s:
            late.append(heapq.heappop(self._heap)[2])
        return late
