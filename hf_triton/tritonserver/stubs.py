"""Finds the Python stubs (processes) of a server, by model.

Triton 24.10 does not notice dead ones: a model whose stub was killed, by the kernel when memory
runs out for example, still counts as ready. Linux only, as the server is.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

_STUB = "triton_python_backend_stub"
_ENDED = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)


@dataclass(frozen=True, order=True)
class Stub:
    """One process: an instance of a version of a model."""

    model: str
    version: str
    pid: int


def find_stubs(group: int) -> frozenset[Stub]:
    """Every stub alive in the process group, without processes that a stub has forked."""
    found: dict[Stub, int] = {}
    pids = set()
    for process in _processes(group):
        pids.add(process.pid)
        with contextlib.suppress(psutil.Error):  # it ended meanwhile
            program, model_file = [*process.cmdline(), "", ""][
                :2
            ]  # no arguments: it starts or ends
            if program.endswith(_STUB) and model_file and process.status() not in _ENDED:
                version = Path(model_file).parent
                found[Stub(version.parent.name, version.name, process.pid)] = process.ppid()
    servers = pids - {stub.pid for stub in found}
    return frozenset(stub for stub, parent in found.items() if parent in servers)


def still_alive(stubs: Iterable[Stub]) -> frozenset[Stub]:
    """Those of ``stubs`` that have not ended; cheaper than a look at every process there is."""
    return frozenset(stub for stub in stubs if _is_alive(stub.pid))


def _is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() not in _ENDED
    except psutil.Error:
        return False


def cpu_seconds(group: int) -> dict[int, float]:
    """What each process of the group has used of the processor so far, in seconds."""
    found = {}
    for process in _processes(group):
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            found[process.pid] = times.user + times.system
    return found


def server_process(guard: int) -> int | None:
    """The tritonserver that a guard has started; None where one of them has ended."""
    with contextlib.suppress(psutil.Error):
        return next((child.pid for child in psutil.Process(guard).children()), None)
    return None


class StubEnds:
    """Notes how stubs end, as they end: from 26.0x on Triton takes note of a dead one with the next
    question whether its model is ready, and then nobody can tell any more.
    """

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._descriptors: dict[int, int] = {}  # by process
        self._ends: dict[int, str] = {}
        threading.Thread(target=self._note, daemon=True).start()

    def watched(self, stubs: Iterable[Stub]) -> frozenset[Stub]:
        """Follows these stubs from now on, and returns them."""
        found = frozenset(stubs)
        for pid in [stub.pid for stub in found if stub.pid not in self._descriptors]:
            with contextlib.suppress(OSError):  # it has ended, or no kernel before 5.3 can tell
                descriptor = os.pidfd_open(pid)
                self._ends.pop(pid, None)  # of one that had its number
                self._descriptors[pid] = descriptor
                self._epoll.register(descriptor, select.EPOLLIN)
        return found

    def how(self, pid: int) -> str:
        """As ``how_it_ended``."""
        return self._ends.get(pid) or how_it_ended(pid)

    def _note(self) -> None:
        while True:
            ended = {descriptor for descriptor, _ in self._epoll.poll()}
            for pid, descriptor in list(self._descriptors.items()):
                if descriptor in ended:
                    self._ends[pid] = how_it_ended(pid)
                    del self._descriptors[pid]
                    os.close(descriptor)


def _processes(group: int) -> Iterator[psutil.Process]:
    for pid in psutil.pids():
        with contextlib.suppress(OSError, psutil.Error):
            if os.getpgid(pid) == group:
                yield psutil.Process(pid)


def how_it_ended(pid: int) -> str:
    """Such as ``killed by SIGKILL: out of memory?``; "" where nobody can tell any more."""
    try:
        # psutil has no exit status of a process that is not our child.
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2]
        state, status = fields.split()[0], int(fields.split()[-1])
    except (OSError, ValueError, IndexError):
        return ""
    if state != "Z":  # another process has its number
        return ""
    if not os.WIFSIGNALED(status):
        return f"exit code {os.WEXITSTATUS(status)}"
    name = signal.Signals(os.WTERMSIG(status)).name
    return f"killed by {name}{': out of memory?' * (name == 'SIGKILL')}"
