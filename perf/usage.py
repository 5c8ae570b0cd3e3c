"""CPU, memory and GPU use of processes and of the whole machine."""

from __future__ import annotations

import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

import psutil

_CGROUP = Path("/sys/fs/cgroup")


def available_gib() -> float:
    """Memory available without swapping, of the machine or within the container's limit."""
    of_machine = float(psutil.virtual_memory().available / 2**30)
    with suppress(OSError, ValueError):  # no limit, or an unreadable one
        limit = int((_CGROUP / "memory.max").read_text())
        used = int((_CGROUP / "memory.current").read_text())
        return min(of_machine, (limit - used) / 2**30)
    return of_machine


def cpu_seconds(pid: int) -> float:
    """CPU time so far of process ``pid`` and its descendants; 0 where it has gone."""
    total = 0.0
    for process in family(pid):
        with suppress(psutil.Error):
            spent = process.cpu_times()
            total += spent.user + spent.system
    return total


def memory_gib(pid: int) -> float:
    """Memory of a process and its descendants, shared pages counted once (PSS); resident memory
    where the system reports no PSS.
    """
    total = 0
    for process in family(pid):
        with suppress(psutil.Error):
            try:
                total += process.memory_full_info().pss
            except (AttributeError, psutil.AccessDenied):
                total += process.memory_info().rss
    return total / 2**30


def server_memory(pid: int) -> dict[str, float]:
    """``memory_gib`` and, with an NVIDIA GPU, ``gpu_memory_gib`` of a process and its descendants;
    the whole GPU's where its processes can't be told apart (in a container).
    """
    found = {"memory_gib": memory_gib(pid)}
    whole = nvidia_smi("gpu=index,memory.used")
    if whole:
        rows, pids = nvidia_smi("compute-apps=pid,used_memory"), {x.pid for x in family(pid)}
        own = [mib for of, mib in rows if of in pids]
        mibs = own if own or not rows else [mib for _, mib in whole]
        found["gpu_memory_gib"] = sum(mibs) / 1024
    return found


def family(pid: int) -> list[psutil.Process]:
    """A process and all its descendants; empty where it has gone."""
    with suppress(psutil.NoSuchProcess):
        leader = psutil.Process(pid)
        return [leader, *leader.children(recursive=True)]
    return []


def machine_cpu_seconds() -> float:
    """CPU time so far of all processes on all cores."""
    spent = psutil.cpu_times()
    waited = spent.idle + getattr(spent, "iowait", 0.0) + getattr(spent, "steal", 0.0)
    # User time already includes guest time.
    guests = getattr(spent, "guest", 0.0) + getattr(spent, "guest_nice", 0.0)
    return float(sum(spent) - waited - guests)


def nvidia_smi(query: str) -> list[list[float]]:
    """The numeric rows of ``nvidia-smi --query-...``; empty without a GPU."""
    found = []
    for line in _asked(f"--query-{query}", "--format=csv,noheader,nounits"):
        with suppress(ValueError):  # [N/A]
            found.append([float(word) for word in line.split(",")])
    return found


def gpu_names() -> list[str]:
    return _asked("--query-gpu=name", "--format=csv,noheader")


def _asked(*arguments: str) -> list[str]:
    if shutil.which("nvidia-smi") is None:
        return []
    try:
        done = subprocess.run(
            ["nvidia-smi", *arguments], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in done.stdout.splitlines() if line.strip()]
