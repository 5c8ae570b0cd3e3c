"""Watches a server's metrics and the use of this machine while a load runs."""

from __future__ import annotations

import contextlib
import os
import re
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import psutil

_EVERY_S = 0.5
_MEMORY_EVERY = 4  # looks between two of memory, which costs more
_LINE = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_OURS, _TRITONS = "hf_triton_", "nv_inference_"


@dataclass(frozen=True)
class Sample:
    """One line of ``/metrics``."""

    name: str
    labels: Mapping[str, str]
    value: float


def parse_metrics(text: str) -> list[Sample]:
    found = []
    for line in text.splitlines():
        if (match := _LINE.fullmatch(line)) and not match[1].endswith("_bucket"):
            labels = dict(_LABEL.findall(match[2] or ""))
            with contextlib.suppress(ValueError):
                found.append(Sample(match[1], labels, float(match[3])))
    return found


def server_figures(
    scrapes: Sequence[Sequence[Sample]], models: Iterable[str], latency_ms: float | None
) -> dict[str, float]:
    """From samples whose label names one of the ``models``; ``latency_ms`` is the clients' mean.
    The in-flight engine keeps its own times, because Triton's end when it has taken the request.
    """
    names = set(models)
    counted = [[one for one in each if one.labels.get("model") in names] for each in scrapes]
    if len(counted) < 2:
        return {}
    waited_s = _quotient(
        counted, f"{_OURS}queue_time_seconds_sum", f"{_OURS}queue_time_seconds_count"
    )
    rows = _quotient(counted, f"{_OURS}batch_size_sum", f"{_OURS}batch_size_count")
    queue_share: float | None
    if waited_s is not None and latency_ms:
        queue_share = min(1.0, waited_s * 1000 / latency_ms)
    else:
        of_all = f"{_TRITONS}request_duration_us"
        queue_share = _quotient(counted, f"{_TRITONS}queue_duration_us", of_all)
    if rows is None:
        rows = _quotient(counted, f"{_TRITONS}count", f"{_TRITONS}exec_count")
    pages = [
        (_total(each, f"{_OURS}kv_pages_used"), _total(each, f"{_OURS}kv_pages"))
        for each in counted
    ]
    shares = [used / of for used, of in pages if of]
    found = {"queue_share": queue_share, "batch_occupancy": rows, "kv_pages_share": _mean(shares)}
    return {name: round(value, 6) for name, value in found.items() if value is not None}


def _quotient(scrapes: Sequence[Sequence[Sample]], of: str, by: str) -> float | None:
    """The growth of the counter ``of`` for each 1 of ``by``, over all instances, or None where that
    has not grown or the server was started again.
    """
    first, last = scrapes[0], scrapes[-1]
    grown = [_total(last, name) - _total(first, name) for name in (of, by)]
    return grown[0] / grown[1] if min(grown) >= 0 and grown[1] else None


def _total(samples: Iterable[Sample], name: str) -> float:
    return sum(one.value for one in samples if one.name == name)


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


def gpu_figures(scrapes: Sequence[Sequence[Sample]]) -> dict[str, float]:
    """Means over the scrapes: how busy the GPUs were (0 to 1), and their memory together."""
    busy = [one.value for each in scrapes for one in each if one.name == "nv_gpu_utilization"]
    used = [_total(each, "nv_gpu_memory_used_bytes") / 2**30 for each in scrapes]
    return (
        {"gpu_share": statistics.fmean(busy), "gpu_memory_gib": statistics.fmean(used)}
        if busy
        else {}
    )


@dataclass(frozen=True)
class Look:
    at_ns: int  # since 1970
    busy_share: float = 0.0  # 0 to 1 of all cores of the machine, since the look before
    server_s: float = 0.0  # CPU time of the server's processes
    memory_gib: float | None = None  # the server's processes, shared pages counted once
    samples: Sequence[Sample] = ()  # the server's metrics; empty where it did not answer


@dataclass
class Watch:
    """The samples of a server and, where it runs here, of its processes and their descendants."""

    metrics: Callable[[], Sequence[Sample]]
    pids: Sequence[int]
    looks: list[Look] = field(default_factory=list)

    def look(self, with_memory: bool = True) -> None:
        processes = [one for pid in self.pids for one in _family(pid)]
        memory = sum(map(_memory_gib, processes)) if with_memory and self.pids else None
        server_s, busy = sum(map(_cpu_seconds, processes)), psutil.cpu_percent() / 100
        samples = self.metrics()  # scraped last, just before the clock is read
        self.looks.append(Look(time.time_ns(), busy, server_s, memory, samples))


def between(looks: Sequence[Look], start_ns: int, end_ns: int) -> list[Look]:
    """The samples in between, with the nearest one outside at each end where there is one."""
    before = [one for one in looks if one.at_ns <= start_ns][-1:]
    inside = [one for one in looks if start_ns < one.at_ns < end_ns]
    after = [one for one in looks if one.at_ns >= end_ns][:1]
    return [*before, *inside, *after]


@contextlib.contextmanager
def watching(metrics: Callable[[], Sequence[Sample]], pids: Sequence[int]) -> Iterator[Watch]:
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
    """The processes that listen on a local port; for a ``serve``'s proxy the ``serve`` itself."""
    found = set()
    with contextlib.suppress(psutil.Error, OSError):
        for one in psutil.net_connections("tcp"):
            if one.status == psutil.CONN_LISTEN and one.laddr and one.laddr.port == http_port:
                process = psutil.Process(one.pid)
                is_proxy = "hf_triton.ports" in process.cmdline()
                found.add(process.ppid() if is_proxy else process.pid)
    return sorted(found - {os.getpid()})


def _family(pid: int) -> list[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        leader = psutil.Process(pid)
        return [leader, *leader.children(recursive=True)]
    return []


def _cpu_seconds(process: psutil.Process) -> float:
    with contextlib.suppress(psutil.Error):
        spent = process.cpu_times()
        return float(spent.user + spent.system)
    return 0.0


def _memory_gib(process: psutil.Process) -> float:
    """Shared pages counted once (PSS); resident memory where the system reports no PSS."""
    with contextlib.suppress(psutil.Error):
        try:
            return float(process.memory_full_info().pss) / 2**30
        except (AttributeError, psutil.AccessDenied):
            return float(process.memory_info().rss) / 2**30
    return 0.0


def machine_figures(looks: Sequence[Look]) -> dict[str, float]:
    if len(looks) < 2 or looks[-1].at_ns <= looks[0].at_ns:
        return {}
    first, last = looks[0], looks[-1]
    figures = {"cpu_share": statistics.fmean(one.busy_share for one in looks[1:])}
    if last.server_s:
        seconds = (last.at_ns - first.at_ns) / 1e9
        figures["server_cpu_cores"] = max(0.0, last.server_s - first.server_s) / seconds
    if memory := [one.memory_gib for one in looks if one.memory_gib]:
        figures["memory_gib"] = statistics.fmean(memory)
    return {name: round(value, 4) for name, value in figures.items()}
