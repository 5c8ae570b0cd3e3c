"""Tells whether the processes of a server compute anything. Linux only, as the server is."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from generator.server_stubs import cpu_seconds

_LOOK_EVERY_S = 1.0
# A process that serves nothing looks around once a second; one that computes uses a core.
_BUSY_SHARE = 0.1


class Idleness:
    """How long no process of a group has used the processor."""

    def __init__(
        self,
        group: int,
        cpu: Callable[[int], Mapping[int, float]] = cpu_seconds,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._group, self._cpu, self._clock = group, cpu, clock
        self._before = cpu(group)
        self._looked_at_s = self._busy_at_s = clock()

    def seconds(self) -> float:
        """Since when nothing computes; to be asked often."""
        now = self._clock()
        elapsed_s = now - self._looked_at_s
        if elapsed_s >= _LOOK_EVERY_S:
            used = self._cpu(self._group)
            limit_s = elapsed_s * _BUSY_SHARE
            if any(value - self._before.get(pid, 0.0) > limit_s for pid, value in used.items()):
                self._busy_at_s = now
            self._before, self._looked_at_s = used, now
        return now - self._busy_at_s
