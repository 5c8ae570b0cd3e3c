"""What a process is limited to, set by the process itself: memory, and the time of one piece of
work.
"""

from __future__ import annotations

import contextlib
import resource
import signal
from pathlib import Path

_PAGE = resource.getpagesize()


def limit_memory(max_bytes: int) -> None:
    """To so many bytes of address space beyond what the process has now."""
    with contextlib.suppress(OSError, ValueError):
        # Where the machine has no memory left, this process goes first.
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    with contextlib.suppress(OSError, ValueError):
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (_statm()[0] + max_bytes, hard))


def end_after(seconds: float) -> None:
    """The kernel ends this process then, whatever code it runs; 0 is never."""
    signal.setitimer(signal.ITIMER_REAL, seconds)


def num_own_bytes() -> int:
    """The memory of this process that is no file's; 0 where the kernel does not tell."""
    try:
        _, resident, shared, *_ = _statm()
    except OSError:
        return 0
    return resident - shared


def _statm() -> list[int]:
    """The sizes of /proc/pid/statm (proc(5)), in bytes."""
    return [int(pages) * _PAGE for pages in Path("/proc/self/statm").read_bytes().split()]
