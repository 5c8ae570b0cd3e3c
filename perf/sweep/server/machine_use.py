"""How busy this machine and a server's processes are, looked at every half second in a thread,
together with what the server counts.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import psutil

from perf.sweep.server.metrics import Sample, mean_and_max
from perf.sweep.server.triton import TritonView
from perf.usage import family, machine_cpu_seconds, memory_gib_of

_EVERY_S = 0.5
_MEMORY_EVERY = 4  # looks; it costs more


@dataclass(frozen=True)
class Look:
    """One moment; seconds of CPU since some beginning, for differences."""

    at_ns: int  # since 1970
    busy_s: float = 0.0  # all cores of the machine
    server_s: float = 0.0
    generator_s: float = 0.0  # the load generator's
    memory_gib: float | None = None  # of the server's processes, shared pages counted once
    samples: Sequence[Sample] = ()  # what the server counts; empty where it did not answer


@dataclass
class Watch:
    """What was seen of a server and, where it runs here, of the ``pids`` of its uppermost
    processes and those below them.
    """

    server: TritonView
    pids: Sequence[int]
    looks: list[Look] = field(default_factory=list)
    silent_since: float | None = None
    _server_s: dict[int, float] = field(default_factory=dict)
    _generator_s: dict[int, float] = field(default_factory=dict)

    @property
    def silent_s(self) -> float:
        """For how long the server's metrics have not answered."""
        return time.monotonic() - self.silent_since if self.silent_since is not None else 0.0

    def look(self, with_memory: bool = True) -> None:
        server = [each for pid in self.pids for each in family(pid)]
        others = {os.getpid(), *(each.pid for each in server)}
        generators = [each for each in family(os.getpid()) if each.pid not in others]
        with_memory = with_memory and bool(server)
        memory_gib = memory_gib_of(server) if with_memory else None
        samples = self.server.metrics()  # last, and then the clock: what was counted until then
        look = Look(
            at_ns=time.time_ns(),
            busy_s=machine_cpu_seconds(),
            server_s=_cpu_s(server, self._server_s),
            generator_s=_cpu_s(generators, self._generator_s),
            memory_gib=memory_gib,
            samples=samples,
        )
        if samples:
            self.silent_since = None
        elif self.silent_since is None:
            self.silent_since = time.monotonic()
        self.looks.append(look)


def between(looks: Sequence[Look], start_ns: int, end_ns: int) -> list[Look]:
    """Those in between, with the nearest outside at both ends where there are such."""
    before = [one for one in looks if one.at_ns <= start_ns][-1:]
    inside = [one for one in looks if start_ns < one.at_ns < end_ns]
    after = [one for one in looks if one.at_ns >= end_ns][:1]
    return [*before, *inside, *after]


@contextlib.contextmanager
def watching(server: TritonView) -> Iterator[Watch]:
    """Looks while the block runs."""
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
    """The processes that listen on a port of this machine, as far as we may see them; where that is
    the proxy of a ``serve``, the ``serve`` that has both it and tritonserver.
    """
    found = set()
    with contextlib.suppress(psutil.Error, OSError):
        for one in psutil.net_connections("tcp"):
            if one.status == psutil.CONN_LISTEN and one.laddr and one.laddr.port == http_port:
                found.add(_uppermost(one.pid))
    return sorted(pid for pid in found if pid)


def _uppermost(pid: int | None) -> int | None:
    process = psutil.Process(pid) if pid else None
    return process.ppid() if process and "hf_triton.ports" in process.cmdline() else pid


def _cpu_s(processes: Sequence[psutil.Process], seen: dict[int, float]) -> float:
    """Their CPU time; what has ended keeps what it had when it was last seen."""
    for process in processes:
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            seen[process.pid] = times.user + times.system
    return sum(seen.values())


def nvidia_smi(query: str) -> list[list[float]]:
    """The rows of ``nvidia-smi --query-...`` that are numbers; none where there is no GPU."""
    found = []
    for line in _asked(f"--query-{query}", "--format=csv,noheader,nounits"):
        with contextlib.suppress(ValueError):  # [N/A]
            found.append([float(word) for word in line.split(",")])
    return found


def gpu_names() -> list[str]:
    """This machine's GPUs, as nvidia-smi names them."""
    return _asked("--query-gpu=name", "--format=csv,noheader")


def _asked(*arguments: str) -> list[str]:
    if shutil.which("nvidia-smi") is None:
        return []
    try:
        done = subprocess.run(
            ["nvidia-smi", *arguments], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in done.stdout.splitlines() if line.strip()]


def server_memory(pid: int) -> dict[str, float]:
    """``memory_gib`` of a process and those below it, shared pages divided among those that share
    them, and ``gpu_memory_gib`` of them where there is an NVIDIA GPU: all of the GPU's where its
    processes can't be told apart (a container).
    """
    processes = family(pid)
    found = {"memory_gib": memory_gib_of(processes)}
    whole = nvidia_smi("gpu=index,memory.used")
    if whole:
        rows, pids = nvidia_smi("compute-apps=pid,used_memory"), {each.pid for each in processes}
        own = [mib for of, mib in rows if of in pids]
        mibs = own if own or not rows else [mib for _, mib in whole]
        found["gpu_memory_gib"] = sum(mibs) / 1024
    return found


def machine_figures(looks: Sequence[Look]) -> dict[str, float]:
    """Means over the looks around and in the counted time."""
    if len(looks) < 2 or looks[-1].at_ns <= looks[0].at_ns:
        return {}
    first, last = looks[0], looks[-1]
    seconds = (last.at_ns - first.at_ns) / 1e9
    figures = {
        "cpu_share": min(1.0, (last.busy_s - first.busy_s) / seconds / (psutil.cpu_count() or 1)),
        "load_generator_cores": (last.generator_s - first.generator_s) / seconds,
    }
    if last.server_s:
        figures["server_cpu_cores"] = (last.server_s - first.server_s) / seconds
    figures |= mean_and_max("memory_gib", [one.memory_gib for one in looks if one.memory_gib])
    return {name: round(value, 4) for name, value in figures.items()}
