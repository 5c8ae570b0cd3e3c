"""How long to wait before something that died is started again, and when to give it up.

Knows neither models nor servers.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class RestartPolicy:
    """A process that died after it was ready is always started again, because a client may have
    caused that. More than ``max_restarts`` failed starts in a row are too many. The first restart
    is immediate, the next ones wait 1, 2, 4 ... ``longest_delay_s`` seconds; after
    ``settled_after_s`` without a death, the delays start again.
    """

    max_restarts: int = 5
    longest_delay_s: float = 60.0
    settled_after_s: float = 30.0


class Restarts:
    """Counts the deaths and failed starts of one process or model; ``num_failed`` is how
    many starts in a row did not get ready.
    """

    def __init__(self, policy: RestartPolicy, clock: Callable[[], float] = time.monotonic) -> None:
        self._policy, self._clock = policy, clock
        self.num_failed, self._max_failed = 0, policy.max_restarts
        self._num_in_a_row = 0
        self._living_since_s: float | None = None

    @property
    def count(self) -> str:
        """How often it failed in a row to start, else how often it died so; for messages."""
        if self.num_failed:
            return f"{self.num_failed} of at most {self._max_failed}"
        return f"{times(self._num_in_a_row, 'death')} in a row"

    def lives(self) -> None:
        """Notes that the process is ready; may be called again and again."""
        if self._living_since_s is None:
            self._living_since_s = self._clock()
        self.num_failed = 0

    def died(self) -> float:
        """Notes a death of a process that was ready. Returns the seconds until the next start."""
        self.num_failed = 0
        return self._delay_s()

    def killed(self) -> float:
        """Notes a kill before the process was ready. Returns the seconds until the next start."""
        return self._delay_s()

    def failed(self, most: int | None = None) -> float | None:
        """Notes that the process did not get ready. Returns the seconds until the next start; None
        if it failed more than ``most`` times in a row, by default as the policy says.
        """
        self.num_failed += 1
        self._max_failed = self._policy.max_restarts if most is None else most
        delay_s = self._delay_s()
        return None if self.num_failed > self._max_failed else delay_s

    def _delay_s(self) -> float:
        now, since, policy = self._clock(), self._living_since_s, self._policy
        if since is not None and now - since >= policy.settled_after_s:
            self._num_in_a_row = 0
        self._living_since_s = None
        num, self._num_in_a_row = self._num_in_a_row, self._num_in_a_row + 1
        # 2 ** 1024 is no float.
        return min(2.0 ** min(num - 1, 64), policy.longest_delay_s) if num else 0.0


def times(num: int, what: str) -> str:
    """Such as ``2 deaths``."""
    return f"{num} {what}{'s' * (num != 1)}"
