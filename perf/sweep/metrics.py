"""A server's metrics and the use of this machine, before and after a load."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import psutil

from hf_triton.tritonserver.http_api import Sample

_OURS, _TRITONS = "hf_triton_", "nv_inference_"


@dataclass(frozen=True)
class Look:
    """A server and, where it runs here, its processes and their descendants, at one moment."""

    at_s: float  # perf_counter
    server_s: float = 0.0  # CPU time of the processes
    memory_gib: float = 0.0  # of the processes, shared pages counted once
    busy_share: float = 0.0  # 0 to 1 of all cores of the machine, since the look before
    samples: Sequence[Sample] = ()  # the server's metrics; empty where it did not answer


def look(metrics: Callable[[], Sequence[Sample]], pids: Sequence[int]) -> Look:
    used = [_used(one) for pid in pids for one in _family(pid)]
    server_s, memory = (sum(each) for each in zip((0.0, 0.0), *used, strict=True))
    return Look(time.perf_counter(), server_s, memory, psutil.cpu_percent() / 100, metrics())


def machine_figures(first: Look, last: Look) -> dict[str, float]:
    """The use of the machine between two looks, and the memory at their end."""
    figures = {"cpu_share": last.busy_share}
    if last.server_s:
        spent_s = max(0.0, last.server_s - first.server_s)
        figures["server_cpu_cores"] = spent_s / (last.at_s - first.at_s)
        figures["memory_gib"] = last.memory_gib
    if gpus := _total(last.samples, "nv_gpu_memory_used_bytes"):
        figures["gpu_memory_gib"] = gpus / 2**30
    return {name: round(value, 4) for name, value in figures.items()}


def server_figures(
    first: Look, last: Look, models: Iterable[str], latency_ms: float | None
) -> dict[str, float]:
    """From samples whose label names one of the ``models``; ``latency_ms`` is the clients' mean.
    The in-flight engine keeps its own times, because Triton's end when it has taken the request.
    """
    names = set(models)
    before, after = (
        [one for one in each.samples if one.labels.get("model") in names] for each in (first, last)
    )

    def quotient(of: str, by: str) -> float | None:
        """The growth of ``of`` for each 1 of ``by``, over all instances, or None where that has not
        grown or the server was started again.
        """
        grown = [_total(after, name) - _total(before, name) for name in (of, by)]
        return grown[0] / grown[1] if min(grown) >= 0 and grown[1] else None

    waited_s = quotient(f"{_OURS}queue_time_seconds_sum", f"{_OURS}queue_time_seconds_count")
    queue_share = quotient(f"{_TRITONS}queue_duration_us", f"{_TRITONS}request_duration_us")
    if waited_s is not None and latency_ms:
        queue_share = min(1.0, waited_s * 1000 / latency_ms)
    rows = quotient(f"{_OURS}batch_size_sum", f"{_OURS}batch_size_count")
    if rows is None:
        rows = quotient(f"{_TRITONS}count", f"{_TRITONS}exec_count")
    found = {"queue_share": queue_share, "batch_occupancy": rows}
    return {name: round(value, 6) for name, value in found.items() if value is not None}


def _total(samples: Iterable[Sample], name: str) -> float:
    return sum(one.value for one in samples if one.name == name)


def server_pids(http_port: int) -> list[int]:
    """The processes that listen on a local port; for a ``serve``'s proxy the ``serve`` itself."""
    found = set()
    with contextlib.suppress(psutil.Error, OSError):
        for one in psutil.net_connections("tcp"):
            if one.status == psutil.CONN_LISTEN and one.laddr and one.laddr.port == http_port:
                process = psutil.Process(one.pid)
                is_proxy = any(word.startswith("hf_triton.ports") for word in process.cmdline())
                found.add(process.ppid() if is_proxy else process.pid)
    return sorted(found - {os.getpid()})


def _family(pid: int) -> list[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        leader = psutil.Process(pid)
        return [leader, *leader.children(recursive=True)]
    return []


def _used(process: psutil.Process) -> tuple[float, float]:
    """CPU time in seconds and memory in GiB: shared pages counted once (PSS), or resident memory
    where the system reports no PSS.
    """
    seconds = memory = 0.0
    with contextlib.suppress(psutil.Error):
        spent = process.cpu_times()
        seconds = float(spent.user + spent.system)
        try:
            memory = process.memory_full_info().pss / 2**30
        except (AttributeError, psutil.AccessDenied):
            memory = process.memory_info().rss / 2**30
    return seconds, memory
