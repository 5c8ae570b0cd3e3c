"""The delay before something that died is started again, and when it is given up.

Knows neither models nor servers.
"""

from __future__ import annotations

import time
from collections.abc import Callable

MAX_RESTARTS = 5
_LONGEST_DELAY_S = 60.0
_SETTLED_AFTER_S = 30.0


class Restarts:
    """Counts the deaths and failed starts of one process or model; ``num_failed`` is the number of
    starts in a row that did not get ready, of which more than ``max_restarts`` are too many. One
    that died after it was ready is always started again, because a client may have caused that.

    The first restart is immediate, the next ones wait 1, 2, 4 ... 60 seconds; after 30 seconds
    without a death the delays start again.
    """

    def __init__(
        self, max_restarts: int = MAX_RESTARTS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._max_restarts, self._clock = max_restarts, clock
        self.num_failed, self._max_failed = 0, max_restarts
        self._num_in_a_row = 0
        self._living_since_s: float | None = None

    def again(self, delay_s: float) -> str:
        """Says when it is started, and after how many failed starts or deaths in a row."""
        count = f"{times(self._num_in_a_row, 'death')} in a row"
        if self.num_failed:
            count = f"{self.num_failed} of at most {self._max_failed}"
        when = f" in {delay_s:g} s" if delay_s else ""
        return f"again{when} ({count})"

    def lives(self) -> None:
        """Notes that the process is ready; may be called again and again."""
        if self._living_since_s is None:
            self._living_since_s = self._clock()
        self.num_failed = 0

    def died(self) -> float:
        """Notes a death of a process that was ready. Returns the seconds until the next start."""
        self.num_failed = 0
        return self.next_delay_s()

    def failed(self, most: int | None = None) -> float | None:
        """Notes that the process did not get ready. Returns the seconds until the next start; None
        if it failed more than ``most`` times in a row, by default ``max_restarts``.
        """
        self.num_failed += 1
        self._max_failed = self._max_restarts if most is None else most
        delay_s = self.next_delay_s()
        return None if self.num_failed > self._max_failed else delay_s

    def next_delay_s(self) -> float:
        """Notes an end, a kill too, and returns the seconds until the next start."""
        since = self._living_since_s
        if since is not None and self._clock() - since >= _SETTLED_AFTER_S:
            self._num_in_a_row = 0
        self._living_since_s = None
        num, self._num_in_a_row = self._num_in_a_row, self._num_in_a_row + 1
        # 2 ** 1024 is no float.
        return min(2.0 ** min(num - 1, 64), _LONGEST_DELAY_S) if num else 0.0


def times(num: int, what: str) -> str:
    """Writes a number with its noun: ``2 deaths``."""
    return f"{num} {what}{'s' * (num != 1)}"
