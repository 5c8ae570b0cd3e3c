"""Sequences whose adapters have to get onto the device before they are scheduled.

Those of adapters that are there go past the ones that wait for a place, until the first of these
has waited for ``_MOST_PASSED_S``: then all wait, so that a place becomes free.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable

from hf_triton.text_generation.lora.places import LimitedAdapters
from hf_triton.text_generation.sequence.sequence import Sequence

_MOST_PASSED_S = 1.0


class AdapterLine:
    """The line of one engine, all of it on the engine's thread; ``scheduled`` are the sequences
    that its scheduler has.
    """

    def __init__(
        self, adapters: LimitedAdapters, scheduled: Callable[[], Iterable[Sequence]]
    ) -> None:
        self._adapters, self._scheduled = adapters, scheduled
        self._waiting: list[Sequence] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def pass_on(self, sequences: Iterable[Sequence]) -> list[Sequence]:
        """Those of these, and of those that wait, whose adapters are on the device now."""
        line = sorted((*self._waiting, *sequences), key=lambda sequence: sequence.priority)
        ready: list[Sequence] = []
        self._waiting = []
        for sequence in line:
            if not sequence.adapter_key or self._loads(sequence.adapter_key, ready):
                ready.append(sequence)
            else:
                self._waiting.append(sequence)
        return ready

    def _loads(self, key: int, ready: list[Sequence]) -> bool:
        if self._waiting:
            has_waited_s = time.monotonic() - self._waiting[0].submitted_s
            if has_waited_s >= _MOST_PASSED_S or not self._adapters.holds(key):
                return False
        return self._adapters.load(
            key, lambda: {one.adapter_key for one in (*self._scheduled(), *ready)}
        )

    def remove(self, sequences: Collection[Sequence]) -> None:
        """Takes out those that have ended."""
        self._waiting = [one for one in self._waiting if one not in sequences]

    def drain(self) -> list[Sequence]:
        """Empties it; returns what was in it."""
        drained, self._waiting = self._waiting, []
        return drained
