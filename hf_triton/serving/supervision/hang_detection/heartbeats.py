"""Reads the heartbeats of models' processes: files that each writes once a second, and in which it
says whether its model is ready. A process of a model that is not ours has none.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class _Beat:
    written_ns: int
    seen_at_s: float
    is_ready: bool


class Heartbeats:
    """The last beats of processes; ``prefix`` is what the paths of their files begin with."""

    def __init__(self, prefix: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._prefix, self._clock = prefix, clock
        self._last: dict[int, _Beat] = {}

    def look(self, pids: Iterable[int]) -> None:
        """Reads the beats of these processes; those of others are forgotten."""
        pids = set(pids)
        for ended in self._last.keys() - pids:
            with contextlib.suppress(OSError):
                self._path(ended).unlink(missing_ok=True)
        beats = {pid: self._beat(pid) for pid in pids}
        self._last = {pid: beat for pid, beat in beats.items() if beat}

    def silent_s(self, pid: int) -> float:
        """Seconds since it last beat; 0 of one that has not begun to, or has ended."""
        beat = self._last.get(pid)
        return self._clock() - beat.seen_at_s if beat else 0.0

    def says_not_ready(self, pid: int) -> bool:
        """Whether its model said so with its last beat."""
        beat = self._last.get(pid)
        return beat is not None and not beat.is_ready

    def _beat(self, pid: int) -> _Beat | None:
        path, last = self._path(pid), self._last.get(pid)
        try:
            written_ns = path.stat().st_mtime_ns
            if last and last.written_ns == written_ns:
                return last
            return _Beat(written_ns, self._clock(), path.read_bytes() != b"0")
        except FileNotFoundError:
            return None
        except OSError:
            return last

    def _path(self, pid: int) -> Path:
        return Path(f"{self._prefix}{pid}")
