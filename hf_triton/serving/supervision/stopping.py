"""Detects that a server which is being stopped waits for what never comes.

Triton 24.10 waits for every request, and those that a process took with it when it died are never
answered.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from hf_triton.serving.supervision.children import Children
from hf_triton.tritonserver.stubs import cpu_seconds

_LOOK_EVERY_S = 1.0
# An idle process wakes up once a second; one that computes uses a core.
_BUSY_SHARE = 0.1
_IDLE_S = 5.0


class IdleTime:
    """Measures for how long no process of a group has used the processor."""

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
        """Seconds since a process last computed; to be called often."""
        now = self._clock()
        elapsed_s = now - self._looked_at_s
        if elapsed_s >= _LOOK_EVERY_S:
            used = self._cpu(self._group)
            limit_s = elapsed_s * _BUSY_SHARE
            if any(value - self._before.get(pid, 0.0) > limit_s for pid, value in used.items()):
                self._busy_at_s = now
            self._before, self._looked_at_s = used, now
        return now - self._busy_at_s


class StuckStop:
    """Whether the stop of one server is stuck: made when it is asked to stop, then called often."""

    def __init__(self, children: Children, idleness: IdleTime, has_deaths: bool) -> None:
        """``has_deaths``: processes of the server have died, and left requests unanswered."""
        self._children, self._idleness, self._has_deaths = children, idleness, has_deaths
        self.came = False

    def __call__(self) -> bool:
        """Whether nothing computes any more, and every request that can be answered has been: the
        processes through which they came have ended.
        """
        is_idle = self._idleness.seconds() > _IDLE_S
        self.came = is_idle and (self._has_deaths or self._children.have_ended)
        return self.came
