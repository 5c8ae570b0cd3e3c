"""Watches a server's metrics and the use of this machine while a load runs."""

from __future__ import annotations

import contextlib
import os
import re
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import psutil

_EVERY_S = 0.5
_MEMORY_EVERY = 4  # looks between two of memory, which costs more
_LINE = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_OURS = "hf_triton_"
_BY_GPU = {
    "nv_gpu_utilization": ("gpu_share", 1.0),
    "nv_gpu_memory_used_bytes": ("gpu_memory_gib", 2.0**-30),
    "nv_gpu_power_usage": ("gpu_power_w", 1.0),
}
# For caches the used share replaces the absolute numbers.
_SHARES = {
    "kv_tokens": "kv_cache_share",
    "kv_slots": "kv_slots_share",
    "kv_pages": "kv_pages_share",
}


@dataclass(frozen=True)
class Sample:
    """One line of ``/metrics``; ``kind`` is counter, gauge or histogram."""

    name: str
    labels: Mapping[str, str]
    value: float
    kind: str = ""


def parse_metrics(text: str) -> list[Sample]:
    kinds: dict[str, str] = {}
    found = []
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            name, _, kind = line[len("# TYPE ") :].partition(" ")
            kinds[name] = kind.strip()
        elif (match := _LINE.fullmatch(line)) and not match[1].endswith("_bucket"):
            labels = dict(_LABEL.findall(match[2] or ""))
            with suppress(ValueError):
                found.append(Sample(match[1], labels, float(match[3]), kinds.get(match[1], "")))
    return found


class Difference:
    def __init__(self, scrapes: Sequence[Sequence[Sample]], models: Iterable[str]) -> None:
        """Counts only samples whose label names one of the ``models``."""
        counted = set(models)
        self.scrapes = [
            [one for one in samples if one.labels.get("model") in counted] for samples in scrapes
        ]

    def grown(self, name: str) -> float:
        """A counter's increase, summed over all instances; 0 after a restart."""
        if len(self.scrapes) < 2:
            return 0.0
        return max(0.0, _total(self.scrapes[-1], name) - _total(self.scrapes[0], name))

    def mean(self, histogram: str) -> float | None:
        count = self.grown(f"{histogram}_count")
        return self.grown(f"{histogram}_sum") / count if count else None


def _total(samples: Iterable[Sample], name: str) -> float:
    return sum(one.value for one in samples if one.name == name)


def server_figures(seen: Difference, latency_ms: float | None) -> dict[str, float]:
    """``latency_ms`` is the clients' mean. The in-flight engine keeps its own times, because
    Triton's end when it has taken the request.
    """
    figures: dict[str, float] = {}
    waited_s = seen.mean(f"{_OURS}queue_time_seconds")
    count = seen.grown("nv_inference_request_success")
    whole_us = seen.grown("nv_inference_request_duration_us")
    if waited_s is not None:
        figures["queue_ms"] = waited_s * 1000
        if latency_ms:
            figures["queue_share"] = min(1.0, waited_s * 1000 / latency_ms)
            figures["compute_ms"] = max(0.0, latency_ms - waited_s * 1000)
    elif count and whole_us:
        queue_us = seen.grown("nv_inference_queue_duration_us")
        steps = (f"nv_inference_compute_{one}_duration_us" for one in ("input", "infer", "output"))
        figures["queue_ms"] = queue_us / count / 1000
        figures["queue_share"] = min(1.0, queue_us / whole_us)
        figures["compute_ms"] = sum(map(seen.grown, steps)) / count / 1000
    rows, executions = seen.mean(f"{_OURS}batch_size"), seen.grown("nv_inference_exec_count")
    if rows is None and executions:
        rows = seen.grown("nv_inference_count") / executions
    if rows is not None:
        figures["batch_occupancy"] = rows
    figures |= _gauge_figures(seen.scrapes)
    for name in ("refused", "prompt_tokens", "generated_tokens"):
        figures[f"{name}_counted"] = seen.grown(f"{_OURS}{name}_total")
    return {name: round(value, 6) for name, value in figures.items()}


def _gauge_figures(scrapes: Sequence[Sequence[Sample]]) -> dict[str, float]:
    """Our gauges, summed over all instances; of a cache the used share in place of its numbers."""
    samples = [one for scrape in scrapes for one in scrape if one.kind == "gauge"]
    names = sorted({one.name for one in samples if one.name.startswith(_OURS)})
    figures: dict[str, float] = {}
    for name in names:
        values = [_total(scrape, name) for scrape in scrapes]
        short, whole = name.removeprefix(_OURS), name.removesuffix("_used")
        if short in _SHARES:
            continue
        if whole in names and whole != name:
            wholes = [_total(scrape, whole) for scrape in scrapes]
            values = [used / of for used, of in zip(values, wholes, strict=True) if of]
            short = _SHARES.get(whole.removeprefix(_OURS), f"{short}_share")
        figures |= mean_and_max(short, values)
    return figures


def mean_and_max(name: str, values: Sequence[float]) -> dict[str, float]:
    if not values:
        return {}
    return {name: sum(values) / len(values), f"{name}_max": max(values)}


def gpu_figures(scrapes: Sequence[Sequence[Sample]]) -> dict[str, float]:
    figures: dict[str, float] = {}
    for metric, (name, scale) in _BY_GPU.items():
        found = [[s.value for s in samples if s.name == metric] for samples in scrapes]
        sums = [(sum(each) * scale, len(each)) for each in found if each]
        values = [total / count if name == "gpu_share" else total for total, count in sums]
        figures |= mean_and_max(name, values)
    return figures


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
    silent_since: float | None = None

    @property
    def silent_s(self) -> float:
        return time.monotonic() - self.silent_since if self.silent_since is not None else 0.0

    def look(self, with_memory: bool = True) -> None:
        processes = [one for pid in self.pids for one in _family(pid)]
        memory = sum(map(_memory_gib, processes)) if with_memory and self.pids else None
        server_s, busy = sum(map(_cpu_seconds, processes)), psutil.cpu_percent() / 100
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
    figures |= mean_and_max("memory_gib", [one.memory_gib for one in looks if one.memory_gib])
    return {name: round(value, 4) for name, value in figures.items()}
