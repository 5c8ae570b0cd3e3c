"""Work in a process of its own that is killed before one of its writes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

_WRITES = frozenset(("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link"))
_killing: dict[str, int] = {}


def _kill_at_a_write(event: str, arguments: tuple[Any, ...]) -> None:
    writes = event in _WRITES or (event == "open" and arguments[2] & os.O_ACCMODE != os.O_RDONLY)
    if _killing and writes:
        _killing["writes_left"] -= 1
        if _killing["writes_left"] < 0:
            os._exit(9)


sys.addaudithook(_kill_at_a_write)


def is_killed(work: Callable[[], object], num_writes: int) -> bool:
    """Does ``work`` in a process, killed before its next write after so many; True if it was."""
    pid = os.fork()
    if pid == 0:
        _killing["writes_left"] = num_writes
        work()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9
