"""Samples the CPU and memory use of this machine and of a server's processes, and the server's
metrics, every half second in a thread.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import psutil

from perf.sweep.metrics import Sample, mean_and_max
from perf.sweep.server import TritonView
from perf.usage import cpu_seconds, machine_cpu_seconds, memory_gib

_EVERY_S = 0.5
_MEMORY_EVERY = 4  # looks between two of memory, which costs more


@dataclass(frozen=True)
class Look:
    """One sample. CPU seconds count from an arbitrary start, for differences."""

    at_ns: int  # since 1970
    busy_s: float = 0.0  # all cores of the machine
    server_s: float = 0.0
    memory_gib: float | None = None  # the server's processes, shared pages counted once
    samples: Sequence[Sample] = ()  # the server's metrics; empty where it did not answer


@dataclass
class Watch:
    """The samples of a server and, where it runs here, of the processes ``pids`` and their
    descendants.
    """

    server: TritonView
    pids: Sequence[int]
    looks: list[Look] = field(default_factory=list)
    silent_since: float | None = None

    @property
    def silent_s(self) -> float:
        """Seconds since the server's metrics last answered."""
        return time.monotonic() - self.silent_since if self.silent_since is not None else 0.0

    def look(self, with_memory: bool = True) -> None:
        memory = sum(map(memory_gib, self.pids)) if with_memory and self.pids else None
        server_s = sum(map(cpu_seconds, self.pids))
        samples = self.server.metrics()  # scraped last, just before the clock is read
        self.looks.append(Look(time.time_ns(), machine_cpu_seconds(), server_s, memory, samples))
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
def watching(server: TritonView) -> Iterator[Watch]:
    """Samples for the length of the block."""
    watch = Watch(server, server_pids(server.http_port) if server.is_local else [])
    ended = threading.Event()

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


def machine_figures(looks: Sequence[Look]) -> dict[str, float]:
    """Means over the samples around and in the counted time."""
    if len(looks) < 2 or looks[-1].at_ns <= looks[0].at_ns:
        return {}
    first, last = looks[0], looks[-1]
    seconds = (last.at_ns - first.at_ns) / 1e9
    share = (last.busy_s - first.busy_s) / seconds / (psutil.cpu_count() or 1)
    figures = {"cpu_share": min(1.0, share)}
    if last.server_s:
        figures["server_cpu_cores"] = max(0.0, last.server_s - first.server_s) / seconds
    figures |= mean_and_max("memory_gib", [one.memory_gib for one in looks if one.memory_gib])
    return {name: round(value, 4) for name, value in figures.items()}
