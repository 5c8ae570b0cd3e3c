"""Runs a program, and ensures that no process of it outlives the one that started the guard.

    python -IS guard.py SHARED_MEMORY_PREFIX SOCKETS PROGRAM [ARGUMENT ...]

The leader of a process group whose stdin is a pipe from its starter: when that closes, however the
starter ended, the whole group is killed, its shared memory removed, and the folder of its sockets,
if SOCKETS names one. The kernel's own way (PR_SET_PDEATHSIG) reaches only the child: a stub of
Triton's that can't take Python's interpreter lock outlives its server. SIGINT and SIGTERM go on to
the program, and it ends as the program does.

Run by its path, imports nothing of ours and, with -S, no psutil.
"""

import contextlib
import ctypes
import os
import resource
import shutil
import signal
import sys
import threading
from pathlib import Path
from types import FrameType

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_NOT_RUN = 127
_STACK_BYTES, _LEAST_STACK_BYTES = 1 << 30, 8 << 20
_STACK_PARTS = 1024  # of the addresses where they are limited: a server has a hundred threads


def main(shared_memory_prefix: str, sockets: str, program: str, *arguments: str) -> None:
    prctl = ctypes.CDLL(None).prctl
    child = os.fork()
    if child == 0:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # should this process be killed
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        give_deep_stacks()
        try:
            os.execv(program, [program, *arguments])  # noqa: S606
        except OSError as error:
            print(f"{program}: {error.strerror}", flush=True)
            os._exit(_NOT_RUN)

    def pass_on(number: int, _frame: FrameType | None) -> None:
        os.kill(child, number)

    signal.signal(signal.SIGTERM, pass_on)
    signal.signal(signal.SIGINT, pass_on)
    watched = (shared_memory_prefix, sockets)
    threading.Thread(target=_follow_input, args=watched, daemon=True).start()
    status = os.waitpid(child, 0)[1]
    _end_orphans()
    if os.WIFSIGNALED(status):  # ends alike
        number = os.WTERMSIG(status)
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.WEXITSTATUS(status))


def give_deep_stacks() -> None:
    """Lets each thread of the program that comes have 1 GiB of stack, or as much as is allowed;
    memory is used for what is touched alone. Where it is unlimited, glibc would give them 2 MiB.
    Where addresses are limited, all stacks together have a part of them.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_STACK)
    soft = _STACK_BYTES if hard == resource.RLIM_INFINITY else min(hard, _STACK_BYTES)
    addresses = _most_addresses()
    if addresses is not None:
        soft = min(soft, max(_LEAST_STACK_BYTES, addresses // _STACK_PARTS))
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_STACK, (soft, hard))


def _most_addresses() -> int | None:
    """The bytes that may be mapped, used or not; None without a limit."""
    limits = [resource.getrlimit(one)[0] for one in (resource.RLIMIT_AS, resource.RLIMIT_DATA)]
    found = [limit for limit in limits if limit != resource.RLIM_INFINITY]
    with contextlib.suppress(OSError, ValueError):
        if Path("/proc/sys/vm/overcommit_memory").read_text().strip() == "2":
            lines = Path("/proc/meminfo").read_text().splitlines()
            found += [int(one.split()[1]) << 10 for one in lines if one.startswith("CommitLimit:")]
    return min(found, default=None)


def _follow_input(shared_memory_prefix: str, sockets: str) -> None:
    while os.read(0, 1):  # until the pipe closes
        pass
    for region in Path("/dev/shm").glob(f"{shared_memory_prefix}*"):  # noqa: S108
        region.unlink(missing_ok=True)
    if sockets:
        shutil.rmtree(sockets, ignore_errors=True)
    os.killpg(0, signal.SIGKILL)


def _end_orphans() -> None:
    """Ends processes that a crashed program leaves: after this process nobody else may."""
    group = os.getpgrp()
    for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))):  # noqa: PTH208
        with contextlib.suppress(OSError):
            if pid != os.getpid() and os.getpgid(pid) == group:
                os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
