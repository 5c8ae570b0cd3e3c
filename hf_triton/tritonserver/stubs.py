"""Finds the Python stubs (processes) of a server, by model, and how they end. Linux only, as the
server is.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import time
from collections.abc import Collection, Iterable, Set
from dataclasses import dataclass
from pathlib import Path

import psutil

from hf_triton.tritonserver.model_state import Cause
from hf_triton.tritonserver.system_calls import signal_name, start_thread

_STUB = "triton_python_backend_stub"
_ENDED = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
# After any other error, such as a lack of file descriptors, the process may still live.
_HAS_ENDED = (FileNotFoundError, ProcessLookupError, psutil.Error)
_VMSTAT = Path("/proc/vmstat")
# No process sends itself one of these.
_SIGNALS_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


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
    for pid in psutil.pids():
        with contextlib.suppress(*_HAS_ENDED):
            if os.getpgid(pid) != group:
                continue
            process = psutil.Process(pid)
            pids.add(pid)
            program, model_file, *_ = [*process.cmdline(), "", ""]  # without any it starts or ends
            if program.endswith(_STUB) and model_file and process.status() not in _ENDED:
                version = Path(model_file).parent
                found[Stub(version.parent.name, version.name, pid)] = process.ppid()
    servers = pids - {stub.pid for stub in found}
    return frozenset(stub for stub, parent in found.items() if parent in servers)


def still_alive(stubs: Iterable[Stub]) -> frozenset[Stub]:
    """Those of ``stubs`` that have not ended; cheaper than a look at every process there is."""
    found = set()
    for stub in stubs:
        with contextlib.suppress(psutil.Error):
            if psutil.Process(stub.pid).status() not in _ENDED:
                found.add(stub)
    return frozenset(found)


def server_process(guard: int) -> int | None:
    """The tritonserver that a guard has started; None where one of them has ended."""
    with contextlib.suppress(psutil.Error):
        return next((child.pid for child in psutil.Process(guard).children()), None)
    return None


@dataclass(frozen=True)
class End:
    """The end of a process; ``text`` is "" if its cause is unknown."""

    cause: Cause = Cause.DIED
    text: str = ""


def started_s(pid: int) -> float:
    """The time at which a process began, on the machine's clock (CLOCK_BOOTTIME)."""
    with contextlib.suppress(*_HAS_ENDED, IndexError, ValueError):
        return int(stat_fields(Path(f"/proc/{pid}"))[19]) / os.sysconf("SC_CLK_TCK")
    return -math.inf


def stat_fields(folder: Path) -> list[str]:
    """The fields of a process' or thread's folder in /proc after its name, from its state on;
    see proc_pid_stat(5). Raises OSError.
    """
    return (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()


def starts_another(tritonserver: int, stubs: Set[int]) -> bool:
    """Returns whether a tritonserver has a living process beside those of its models."""
    with contextlib.suppress(psutil.Error):
        others = (c for c in psutil.Process(tritonserver).children() if c.pid not in stubs)
        return any(child.status() != psutil.STATUS_ZOMBIE for child in others)
    return False


class StubEnds:
    """Records each stub's end at once: from 26.0x on Triton reaps a dead one when it is next asked
    if the model is ready, and its exit status is lost.
    """

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._watched: dict[int, tuple[int, Stub]] = {}  # by process: descriptor
        self._ends: dict[int, tuple[float, Stub, End]] = {}
        self._num_out_of_memory = num_out_of_memory()
        start_thread(self._note)

    def watched(self, stubs: Iterable[Stub]) -> frozenset[Stub]:
        """Follows these stubs from now on, and returns them."""
        found = frozenset(stubs)
        for stub in [stub for stub in found if stub.pid not in self._watched]:
            with contextlib.suppress(OSError):  # it has ended, or no kernel before 5.3 can tell
                descriptor = os.pidfd_open(stub.pid)
                self._ends.pop(stub.pid, None)  # of one that had its number
                self._watched[stub.pid] = descriptor, stub
                self._epoll.register(descriptor, select.EPOLLIN)
        return found

    def how(self, pid: int) -> End:
        noted = self._ends.get(pid)
        return noted[2] if noted else how_it_ended(pid, None)

    def last_of(self, models: Collection[str], since_s: float) -> End:
        """The end of the last process of these models that has ended since then."""
        found = [one for one in list(self._ends.values()) if one[1].model in models]
        at_s, _, end = max(found, default=(0.0, None, End()), key=lambda one: one[0])
        return end if at_s >= since_s else End()

    def _note(self) -> None:
        while True:
            ended = {descriptor for descriptor, _ in self._epoll.poll()}
            num = num_out_of_memory()
            is_memory = None if num is None else num != self._num_out_of_memory
            self._num_out_of_memory = num
            for pid, (descriptor, stub) in list(self._watched.items()):
                if descriptor in ended:
                    self._ends[pid] = time.monotonic(), stub, how_it_ended(pid, is_memory)
                    del self._watched[pid]
                    os.close(descriptor)


def num_out_of_memory() -> int | None:
    """The number of processes that the kernel killed for lack of memory, or None if unknown."""
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = _VMSTAT.read_text().splitlines()
        return int(next(line.split()[1] for line in lines if line.startswith("oom_kill ")))
    return None


def how_it_ended(pid: int, is_memory: bool | None) -> End:
    """Describes the end of a process, as in ``killed by SIGKILL: out of memory``. ``is_memory``
    says whether the kernel has just killed for lack of memory, None if that is unknown.
    """
    try:
        # psutil has no exit status of a process that is not our child.
        state, *_, code = stat_fields(Path(f"/proc/{pid}"))
        status = int(code)
    except (OSError, ValueError):
        return End()
    if state != "Z":  # another process has its number
        return End()
    if not os.WIFSIGNALED(status):
        return End(Cause.CRASHED, f"exit code {os.WEXITSTATUS(status)}")
    number = os.WTERMSIG(status)
    text = f"killed by {signal_name(number)}"
    if number not in _SIGNALS_FROM_OUTSIDE:
        return End(Cause.CRASHED, text)
    if number != signal.SIGKILL or is_memory is False:
        return End(Cause.KILLED, text)
    return End(Cause.OUT_OF_MEMORY, f"{text}: out of memory{'?' * (is_memory is None)}")
