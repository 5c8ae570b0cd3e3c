"""Finds processes that hang, from for how long they have been silent and what the kernel tells.

A process that is slow, because it computes or because the machine is busy with others, is no
process that hangs: it uses the processor, or waits for it or for a disk. Ends nothing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

# A stop this short may be a tool's that looks into the process.
_STOPPED_S = 5.0
_SILENT_S = 8.0
# For one that computes all the time: longer than anything that it should do without a word.
SILENT_THOUGH_BUSY_S = 45.0
# Of one core. Threads of Python that wait for one that never lets go of the interpreter wake up
# 2,000 times a second, and use a tenth.
_BUSY_SHARE = 0.25
_UNSURE_S, _WATCHED_S = 2.0, 4.0
# It may be ourselves who were stopped in between.
_NUM_LOOKS = 3
# One that waits for a core or a disk is never found asleep.
_NUM_ASLEEP = 2


@dataclass(frozen=True)
class Activity:
    """What the kernel tells of a process: whether it was stopped, whether every thread of it sleeps
    (none runs, or waits for a core or a disk), and the seconds of processor time that it has used.
    """

    is_stopped: bool
    sleeps: bool
    cpu_s: float


def activity(pid: int) -> Activity | None:
    """None of a process that has ended, or that a debugger holds."""
    try:
        state, cpu_s = _state(Path(f"/proc/{pid}/stat"))
        if state == "t":
            return None
        threads = Path(f"/proc/{pid}/task").iterdir()
        return Activity(state == "T", all(_state(t / "stat")[0] == "S" for t in threads), cpu_s)
    except (OSError, IndexError, ValueError):
        return None


def _state(stat: Path) -> tuple[str, float]:
    """Its letter in proc_pid_stat(5), and user and system time in seconds."""
    fields = stat.read_text(errors="replace").rpartition(")")[2].split()
    return fields[0], (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@dataclass
class _Watched:
    since_s: float  # since when it may hang
    cpu_s: float  # what it had used of the processor by then
    is_stopped: bool
    num_looks: int = 0
    num_asleep: int = 0


class HangingProcesses:
    """Follows some processes; to be asked about all of them once a second or so."""

    def __init__(
        self,
        look: Callable[[int], Activity | None] = activity,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._look, self._clock = look, clock
        self._watched: dict[int, _Watched] = {}

    def among(self, silent_s: Mapping[int, float]) -> dict[int, str]:
        """Those that hang, and why, of processes with the seconds since each was heard of."""
        self._watched = {pid: seen for pid, seen in self._watched.items() if pid in silent_s}
        reasons = {pid: self._why(pid, seconds) for pid, seconds in silent_s.items()}
        return {pid: reason for pid, reason in reasons.items() if reason}

    def _why(self, pid: int, silent_s: float) -> str:
        now = self._look(pid)
        if now is None or (silent_s < _UNSURE_S and not now.is_stopped):
            self._watched.pop(pid, None)
            return ""
        at_s, seen = self._clock(), self._watched.get(pid)
        if (
            seen is None
            or now.is_stopped != seen.is_stopped
            or (seen.is_stopped and seen.cpu_s < now.cpu_s)
        ):
            seen = self._watched[pid] = _Watched(at_s, now.cpu_s, now.is_stopped)
        seen.num_looks += 1
        seen.num_asleep += now.sleeps
        if seen.num_looks < _NUM_LOOKS:
            return ""
        watched_s = at_s - seen.since_s
        if now.is_stopped:
            return "was stopped" if watched_s >= _STOPPED_S else ""
        used_s = now.cpu_s - seen.cpu_s
        is_idle = seen.num_asleep >= _NUM_ASLEEP and used_s <= watched_s * _BUSY_SHARE
        is_hung = is_idle and silent_s >= _SILENT_S and watched_s >= _WATCHED_S
        if is_hung or silent_s >= SILENT_THOUGH_BUSY_S:
            return f"has not answered for {silent_s:.0f} s"
        return ""
