"""Clients that ask without a pause: their threads, and how long they waited. Knows nothing of what
they ask.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

Self = TypeVar("Self", bound="Unpaused")


@dataclass(frozen=True)
class Timed:
    """One request: when it began and ended, in seconds of the monotonic clock."""

    began_s: float
    ended_s: float

    @property
    def seconds(self) -> float:
        return self.ended_s - self.began_s


class Unpaused:
    """Threads that run while the block does, each until ``ended`` is set."""

    def __init__(self, threads: Sequence[threading.Thread]) -> None:
        self.ended = threading.Event()
        self._threads = threads

    def __enter__(self: Self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        for thread in self._threads:
            thread.join()


def percentile_s(asked: Sequence[Timed], share: float) -> float:
    """The time that ``share`` of the requests took at most, in seconds; 0 where there are none."""
    ordered = sorted(one.seconds for one in asked)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0
