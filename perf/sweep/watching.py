"""Samples the CPU and memory use of this machine and of a server's processes, and the server's
metrics, every half second in a thread.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import psutil

from perf.sweep.metrics import Sample, mean_and_max

_EVERY_S = 0.5
_MEMORY_EVERY = 4  # looks between two of memory, which costs more


@dataclass(frozen=True)
class Look:
    """One sample."""

    at_ns: int  # since 1970
    busy_share: float = 0.0  # 0 to 1 of all cores of the machine, since the look before
    server_s: float = 0.0  # CPU time of the server's processes
    memory_gib: float | None = None  # the server's processes, shared pages counted once
    samples: Sequence[Sample] = ()  # the server's metrics; empty where it did not answer


@dataclass
class Watch:
    """The samples of a server and, where it runs here, of the processes ``pids`` and their
    descendants.
    """

    metrics: Callable[[], Sequence[Sample]]
    pids: Sequence[int]
    looks: list[Look] = field(default_factory=list)
    silent_since: float | None = None

    @property
    def silent_s(self) -> float:
        """Seconds since the server's metrics last answered."""
        return time.monotonic() - self.silent_since if self.silent_since is not None else 0.0

    def look(self, with_memory: bool = True) -> None:
        memory = sum(map(memory_gib, self.pids)) if with_memory and self.pids else None
        server_s, busy = sum(map(cpu_seconds, self.pids)), psutil.cpu_percent() / 100
        samples = self.metrics()  # scraped last, just before the clock is read
        self.looks.append(Look(time.time_ns(), busy, server_s, memory, samples))
        if samples:
            self.silent_since = None
        elif self.silent_since is None:
            self.silent_since = time.monotonic()


def between(looks: Sequence[Look], start_ns: int, end_ns: int) -> list[Look]:
    """The samples in between, with the nearest one outside at each end where there is one."""
    before = [one for one in looks if one.at_ns <= start_ns][-1:]
    inside = [one for one in looks if start_ns < one.at_ns < end_ns]
    after = [one for one in looks if one.at_ns >= end_ns][:1]
    return [*before, *inside, *after]


@contextlib.contextmanager
def watching(metrics: Callable[[], Sequence[Sample]], pids: Sequence[int]) -> Iterator[Watch]:
    """Samples for the length of the block."""
    watch, ended = Watch(metrics, pids), threading.Event()

    def look_on() -> None:
        number = 0
        while not ended.wait(_EVERY_S):
            number += 1
            watch.look(with_memory=number % _MEMORY_EVERY == 0)

    watch.look()
    thread = threading.Thread(target=look_on, daemon=True)
    thread.start()
    try:
        yield watch
    finally:
        ended.set()
        thread.join()
        watch.look()


def server_pids(http_port: int) -> list[int]:
    """The processes that listen on a local port, as far as we may see them. For the proxy of a
    ``serve``: the ``serve`` process that runs both it and tritonserver.
    """
    found = set()
    with contextlib.suppress(psutil.Error, OSError):
        for one in psutil.net_connections("tcp"):
            if one.status == psutil.CONN_LISTEN and one.laddr and one.laddr.port == http_port:
                process = psutil.Process(one.pid)
                is_proxy = "hf_triton.ports" in process.cmdline()
                found.add(process.ppid() if is_proxy else process.pid)
    return sorted(found - {os.getpid()})


def cpu_seconds(pid: int) -> float:
    """CPU time so far of process ``pid`` and its descendants; 0 where it has gone."""
    total = 0.0
    for process in _family(pid):
        with contextlib.suppress(psutil.Error):
            spent = process.cpu_times()
            total += spent.user + spent.system
    return total


def memory_gib(pid: int) -> float:
    """Memory of a process and its descendants, shared pages counted once (PSS); resident memory
    where the system reports no PSS.
    """
    total = 0
    for process in _family(pid):
        with contextlib.suppress(psutil.Error):
            try:
                total += process.memory_full_info().pss
            except (AttributeError, psutil.AccessDenied):
                total += process.memory_info().rss
    return total / 2**30


def _family(pid: int) -> list[psutil.Process]:
    """A process and all its descendants; empty where it has gone."""
    with contextlib.suppress(psutil.NoSuchProcess):
        leader = psutil.Process(pid)
        return [leader, *leader.children(recursive=True)]
    return []


def machine_figures(looks: Sequence[Look]) -> dict[str, float]:
    """Means over the samples around and in the counted time."""
    if len(looks) < 2 or looks[-1].at_ns <= looks[0].at_ns:
        return {}
    first, last = looks[0], looks[-1]
    figures = {"cpu_share": statistics.fmean(one.busy_share for one in looks[1:])}
    if last.server_s:
        seconds = (last.at_ns - first.at_ns) / 1e9
        figures["server_cpu_cores"] = max(0.0, last.server_s - first.server_s) / seconds
    figures |= mean_and_max("memory_gib", [one.memory_gib for one in looks if one.memory_gib])
    return {name: round(value, 4) for name, value in figures.items()}
