"""Starts and ends child processes of our own modules; on Linux the kernel ends them if we are
killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_ROOT = Path(__file__).parents[1]
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


def our_environment() -> dict[str, str]:
    """An environment in which Python imports our packages from any working directory."""
    path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, "PYTHONPATH": path}


def killed_with_parent(number: int) -> Callable[[], None] | None:
    """A ``preexec_fn``: the child gets signal ``number`` when the thread that started it ends, so
    start it from a long-lived thread. None where the system can't do this.
    """
    libc = _LIBC
    if libc is None:
        return None

    def ask() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, number)

    return ask


def end(process: subprocess.Popen[Any], grace_s: float) -> None:
    """Ends a process group: by SIGTERM first, then by SIGKILL."""
    process.terminate()
    try:
        process.wait(grace_s)
    except subprocess.TimeoutExpired:
        pass
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
