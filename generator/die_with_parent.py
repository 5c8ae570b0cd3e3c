"""Becomes another program that the kernel kills when the parent dies: run as a script, by its path.

    python -IS die_with_parent.py PARENT_PID PROGRAM [ARGUMENT ...]

A script, because code between fork and exec (``preexec_fn``) is unsafe in a process with threads.
Imports nothing of ours: it starts before anything is known to work.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main(parent_pid: str, program: str, *arguments: str) -> None:
    """Sets the signal and becomes ``program``."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == int(parent_pid):  # otherwise it died before the line above
        os.execv(program, [program, *arguments])  # noqa: S606


if __name__ == "__main__":
    main(*sys.argv[1:])
