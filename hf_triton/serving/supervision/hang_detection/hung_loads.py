"""Loads that never end: Triton 24.10 waits for ever for a process that dies in its first moments,
and loads nothing more by that name.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Set

import psutil

from hf_triton.serving.supervision.hang_detection.server_answers import Version

_MOST_SECONDS = 15  # a process is there within one, where there are cores


class HungLoads:
    """Of one server; ``look`` once a second."""

    def __init__(self) -> None:
        self._seconds: dict[Version, int] = {}  # in which no process was on its way

    def look(self, lacking: Iterable[Version], *, may_come: bool) -> str:
        """``lacking`` are being loaded and have fewer processes than they need; whether one
        ``may_come``. Returns a model that has waited too long, "" where there is none.
        """
        more = not may_come
        self._seconds = {version: self._seconds.get(version, 0) + more for version in lacking}
        return next((one for (one, _), num in self._seconds.items() if num > _MOST_SECONDS), "")


def starts_another(tritonserver: int, stubs: Set[int]) -> bool:
    """Whether a tritonserver has a living process beside those of its models."""
    with contextlib.suppress(psutil.Error):
        for child in psutil.Process(tritonserver).children():
            if child.pid not in stubs and child.status() != psutil.STATUS_ZOMBIE:
                return True
    return False
