"""What processes and the whole machine take: cores and memory."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import psutil

_CGROUP = Path("/sys/fs/cgroup")


def available_gib() -> float:
    """Memory that can be had without swapping, of the machine or of the container's limit."""
    of_machine = float(psutil.virtual_memory().available / 2**30)
    with suppress(OSError, ValueError):  # no limit, or none that is told here
        limit = int((_CGROUP / "memory.max").read_text())
        used = int((_CGROUP / "memory.current").read_text())
        return min(of_machine, (limit - used) / 2**30)
    return of_machine


def cpu_seconds(pid: int) -> float:
    """CPU time so far of process ``pid`` and those below it; 0 where it has gone."""
    total = 0.0
    for process in family(pid):
        with suppress(psutil.Error):
            spent = process.cpu_times()
            total += spent.user + spent.system
    return total


def memory_gib(pid: int) -> float:
    """Memory of a process and those below it, what they share counted once (PSS)."""
    return memory_gib_of(family(pid))


def memory_gib_of(processes: Iterable[psutil.Process]) -> float:
    """The memory of processes; where the system does not tell shares, resident memory."""
    total = 0
    for process in processes:
        with suppress(psutil.Error):
            try:
                total += process.memory_full_info().pss
            except (AttributeError, psutil.AccessDenied):
                total += process.memory_info().rss
    return total / 2**30


def family(pid: int) -> list[psutil.Process]:
    """A process and all below it; none where it has gone."""
    with suppress(psutil.NoSuchProcess):
        leader = psutil.Process(pid)
        return [leader, *leader.children(recursive=True)]
    return []


def machine_cpu_seconds() -> float:
    """CPU time so far of everything on this machine, in all its cores together."""
    spent = psutil.cpu_times()
    waited = spent.idle + getattr(spent, "iowait", 0.0) + getattr(spent, "steal", 0.0)
    # Guests' time is part of the users' already.
    guests = getattr(spent, "guest", 0.0) + getattr(spent, "guest_nice", 0.0)
    return float(sum(spent) - waited - guests)
