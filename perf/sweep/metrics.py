"""Computes figures from Triton's and our models' metrics: parses Prometheus text and takes
differences between two scrapes. Sends no requests.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

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
    """All samples that have a number, without histogram buckets."""
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
    """The change between the first and the last scrape of a measurement."""

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
        """The mean of a histogram's observations in that time."""
        count = self.grown(f"{histogram}_count")
        return self.grown(f"{histogram}_sum") / count if count else None


def _total(samples: Iterable[Sample], name: str) -> float:
    return sum(one.value for one in samples if one.name == name)


def server_figures(seen: Difference, latency_ms: float | None) -> dict[str, float]:
    """The ``server`` figures of a measurement; ``latency_ms`` is the clients' mean. The in-flight
    engine keeps its own times, because Triton's end when it has taken the request.
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
    """Triton's GPU metrics: means over all scrapes and GPUs; memory and power are sums."""
    figures: dict[str, float] = {}
    for metric, (name, scale) in _BY_GPU.items():
        found = [[s.value for s in samples if s.name == metric] for samples in scrapes]
        sums = [(sum(each) * scale, len(each)) for each in found if each]
        values = [total / count if name == "gpu_share" else total for total, count in sums]
        figures |= mean_and_max(name, values)
    return figures
