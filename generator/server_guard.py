"""Runs a program and sees to it that nothing of it outlives whoever started this.

    python -IS server_guard.py SHARED_MEMORY_PREFIX PROGRAM [ARGUMENT ...]

The leader of a process group whose stdin is a pipe from its starter: when that closes, however the
starter ended, the whole group is killed and its shared memory removed. The kernel's own way
(PR_SET_PDEATHSIG) reaches only the child: a stub of Triton's that can't take Python's interpreter
lock outlives its server. SIGINT and SIGTERM go on to the program, and it ends as the program does.
Run by its path, imports nothing of ours.
"""

import ctypes
import os
import signal
import sys
import threading
from pathlib import Path
from types import FrameType

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_NOT_RUN = 127


def main(shared_memory_prefix: str, program: str, *arguments: str) -> None:
    """Runs ``program`` to its end."""
    prctl = ctypes.CDLL(None).prctl
    child = os.fork()
    if child == 0:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # should this process be killed
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        _become(program, arguments)

    def pass_on(number: int, _frame: FrameType | None) -> None:
        os.kill(child, number)

    signal.signal(signal.SIGTERM, pass_on)
    signal.signal(signal.SIGINT, pass_on)
    watch = threading.Thread(target=_end_with_input, args=(shared_memory_prefix,), daemon=True)
    watch.start()
    _end_like(os.waitpid(child, 0)[1])


def _become(program: str, arguments: tuple[str, ...]) -> None:
    try:
        os.execv(program, [program, *arguments])  # noqa: S606
    except OSError as error:
        print(f"{program}: {error.strerror}", flush=True)
        os._exit(_NOT_RUN)


def _end_with_input(shared_memory_prefix: str) -> None:
    while os.read(0, 1):
        pass
    for region in Path("/dev/shm").glob(f"{shared_memory_prefix}*"):  # noqa: S108
        region.unlink(missing_ok=True)
    os.killpg(0, signal.SIGKILL)


def _end_like(status: int) -> None:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.WEXITSTATUS(status))


if __name__ == "__main__":
    main(*sys.argv[1:])
