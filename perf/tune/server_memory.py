"""What a server's processes hold, as long as they run."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess

import psutil

_GIB = 2**30
_MIB_PER_GIB = 1024


def server_memory(group: int) -> dict[str, float]:
    """``memory_gib`` of a process group, shared pages divided among those that share them, and
    ``gpu_memory_gib`` of it where there is an NVIDIA GPU.
    """
    processes = _group(group)
    found = {"memory_gib": sum(map(_bytes, processes)) / _GIB}
    gpu = _gpu_gib({process.pid for process in processes})
    return found if gpu is None else {**found, "gpu_memory_gib": gpu}


def _group(group: int) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getpgid(process.pid) == group:
                found.append(process)
    return found


def _bytes(process: psutil.Process) -> int:
    with contextlib.suppress(psutil.Error):
        memory = process.memory_full_info()
        return int(getattr(memory, "pss", 0) or memory.rss)
    return 0


def _gpu_gib(pids: set[int]) -> float | None:
    """None without a GPU; all of a GPU where its processes can't be told apart (a container)."""
    by_process = _nvidia_smi("--query-compute-apps=pid,used_memory")
    if by_process is None:
        return None
    own = [mib for pid, mib in by_process if pid in pids]
    if own or not by_process:
        return sum(own) / _MIB_PER_GIB
    whole = _nvidia_smi("--query-gpu=index,memory.used") or []
    return sum(mib for _, mib in whole) / _MIB_PER_GIB


def _nvidia_smi(query: str) -> list[tuple[int, float]] | None:
    if shutil.which("nvidia-smi") is None:
        return None
    command = ["nvidia-smi", query, "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    rows = (line.split(",") for line in answer.stdout.splitlines() if "," in line)
    found = []
    for first, second in rows:
        with contextlib.suppress(ValueError):  # [N/A]
            found.append((int(first), float(second)))
    return found
