"""Leftovers of processes that died: in a tritonserver that lives, and in shared memory.

Triton never answers the requests that a model's process took with it. For each such death it keeps
the process' shared memory and 35 threads of its own until it ends itself, 24.10 a zombie too.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterable
from pathlib import Path

from hf_triton.tritonserver.listen import SHARED_MEMORY

_OF_PROCESS = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")  # Triton's end of its name
_NEW_S = 10.0  # so young a region may be of a process that nobody has seen yet
# 1,000 threads: containers are often limited to some thousands.
_MOST_PROCESSES = 24
_MOST_OF_SHARED_MEMORY = 0.25


def left_behind(prefix: str, living: Iterable[int]) -> tuple[int, float]:
    """The number of dead processes that left their shared memory, and the part of all shared memory
    that no living process of a model uses. ``prefix`` is that of a server's regions, ``living`` are
    its models' processes.
    """
    folder = os.statvfs(SHARED_MEMORY)
    size = folder.f_blocks * folder.f_frsize
    used: set[str] = set()
    for pid in living:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            lines = Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines()
            used |= {line.split(maxsplit=5)[-1] for line in lines}
    num_processes = num_bytes = 0
    for region in SHARED_MEMORY.glob(f"{prefix}*"):
        with contextlib.suppress(OSError):
            seen = region.stat()
            if str(region) not in used:
                is_process = _OF_PROCESS.fullmatch(region.name.removeprefix(prefix)) is not None
                num_processes += is_process and time.time() - seen.st_mtime > _NEW_S
                num_bytes += seen.st_blocks * 512
    return num_processes, num_bytes / size if size else 0.0


def are_too_many(num_processes: int, part_of_shared_memory: float) -> bool:
    """Whether a server with such leftovers will soon lack threads or shared memory."""
    is_memory_short = num_processes > 0 and part_of_shared_memory > _MOST_OF_SHARED_MEMORY
    return num_processes >= _MOST_PROCESSES or is_memory_short
