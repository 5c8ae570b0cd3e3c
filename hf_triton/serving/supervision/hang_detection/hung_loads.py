"""Loads that never end: Triton 24.10 waits for ever for a process that dies in its first moments,
and loads nothing more by that name.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Set

import psutil

_HANGS_AFTER_S = 15.0  # a process is there within a second, where there are cores


class HungLoads:
    """Of one server; ``look`` once a second."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since_s: dict[str, float] = {}

    def look(self, folders: Iterable[str]) -> str:
        """``folders`` are loaded, and no process of theirs lives or comes. One for which that has
        been so for too long, "" where there is none.
        """
        now = self._clock()
        self._since_s = {folder: self._since_s.get(folder, now) for folder in folders}
        late = (one for one, since_s in self._since_s.items() if now - since_s > _HANGS_AFTER_S)
        return next(late, "")


def starts_another(tritonserver: int, stubs: Set[int]) -> bool:
    """Whether a tritonserver has a living process beside those of its models."""
    with contextlib.suppress(psutil.Error):
        for child in psutil.Process(tritonserver).children():
            if child.pid not in stubs and child.status() != psutil.STATUS_ZOMBIE:
                return True
    return False
