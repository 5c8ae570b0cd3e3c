"""How long to wait before something that died is started again, and when to give it up.

Knows neither models nor servers.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class RestartPolicy:
    """More than ``max_restarts`` deaths within ``window_s`` are too many. The first restart is
    immediate, the next ones wait 1, 2, 4 ... ``longest_delay_s`` seconds; after ``settled_after_s``
    without a death, the delays start again.
    """

    max_restarts: int = 5
    window_s: float = 600.0
    longest_delay_s: float = 60.0
    settled_after_s: float = 30.0


class Restarts:
    """Counts the deaths of one process or model, failed restarts included."""

    def __init__(self, policy: RestartPolicy, clock: Callable[[], float] = time.monotonic) -> None:
        self._policy = policy
        self._clock = clock
        self._deaths_s: list[float] = []
        self._num_in_a_row = 0
        self._living_since_s: float | None = None

    @property
    def num_recent(self) -> int:
        """How often it died within the window that ended with its last death."""
        return len(self._deaths_s)

    def lives(self) -> None:
        """It is up again."""
        self._living_since_s = self._clock()

    def died(self) -> float | None:
        """Seconds to wait before it is started again; None where it died too often for that."""
        now, since = self._clock(), self._living_since_s
        policy = self._policy
        if since is not None and now - since >= policy.settled_after_s:
            self._num_in_a_row = 0
        self._living_since_s = None
        self._deaths_s = [at for at in self._deaths_s if now - at < policy.window_s] + [now]
        if self.num_recent > policy.max_restarts:
            return None
        delay_s = 2.0 ** (self._num_in_a_row - 1) if self._num_in_a_row else 0.0
        self._num_in_a_row += 1
        return min(delay_s, policy.longest_delay_s)
