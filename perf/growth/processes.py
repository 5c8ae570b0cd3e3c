"""What processes take, read from /proc: memory, processor time, and what the machine has left.

Knows no server and no axis.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from perf.machine import proc_value

KEPT_FREE_GIB = 1.0
_SAMPLE_EVERY_S = 0.5
_CGROUP = Path("/sys/fs/cgroup")


def group(leader: int) -> Iterator[int]:
    """The processes of a process group; none of other users' that hide theirs."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                if os.getpgid(int(entry.name)) == leader:
                    yield int(entry.name)


def memory_mib(leader: int) -> float:
    """What a process group holds; what its processes share counts once (PSS)."""
    values = (proc_value(f"/proc/{pid}/smaps_rollup", "Pss") for pid in group(leader))
    return sum(int(value.split()[0]) for value in values if value) / 1024


def cpu_s(leader: int) -> float:
    """The processor time that the living processes of a group have taken."""
    ticks = 0
    for pid in group(leader):
        with contextlib.suppress(OSError):
            text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
            after_name = text.rpartition(")")[2].split()
            ticks += int(after_name[11]) + int(after_name[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def available_gib() -> float:
    """What can be had without swapping, of the machine or of the container's limit."""
    of_machine = int((proc_value("/proc/meminfo", "MemAvailable") or "0 kB").split()[0]) / 2**20
    with contextlib.suppress(OSError, ValueError):
        limit = int((_CGROUP / "memory.max").read_text())
        used = int((_CGROUP / "memory.current").read_text())
        return min(of_machine, (limit - used) / 2**30)
    return of_machine


def too_little(needed_gib: float, what: str) -> str:
    """Why the machine has not enough for ``what``; empty where KEPT_FREE_GIB would be left."""
    available = available_gib()
    if available - needed_gib >= KEPT_FREE_GIB:
        return ""
    return (
        f"not enough memory for {what}: about {needed_gib:.1f} GiB are needed and "
        f"{KEPT_FREE_GIB:g} GiB stay free, but the machine has {available:.1f} GiB left; end other "
        "programs, or leave such points out with --points"
    )


class PeakMemory:
    """The highest memory of a process group inside the block, sampled twice a second."""

    def __init__(self, leader: int) -> None:
        self._leader = leader
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.mib = 0.0

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._done.set()
        self._thread.join()
        self._sample()

    def _watch(self) -> None:
        self._sample()
        while not self._done.wait(_SAMPLE_EVERY_S):
            self._sample()

    def _sample(self) -> None:
        self.mib = max(self.mib, memory_mib(self._leader))
