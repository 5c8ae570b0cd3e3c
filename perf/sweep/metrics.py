"""What Triton and our models count, as the figures of one measurement: Prometheus' text in,
differences between two moments out. Asks nobody.
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
# Of a cache its share that is used, in place of what that is a share of.
_SHARES = {"tokens": "kv_cache_share", "slots": "kv_slots_share", "pages": "kv_pages_share"}


@dataclass(frozen=True)
class Sample:
    """One line of ``/metrics``; ``kind`` is counter, gauge or histogram."""

    name: str
    labels: Mapping[str, str]
    value: float
    kind: str = ""


def parse_metrics(text: str) -> list[Sample]:
    """Every line that has a number; buckets are left out, nothing here needs them."""
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
    """Between the first and the last of a measurement's scrapes of ``/metrics``."""

    def __init__(self, scrapes: Sequence[Sequence[Sample]], models: Iterable[str]) -> None:
        """Only what has one of the ``models`` as its label counts."""
        counted = set(models)
        self.scrapes = [
            [one for one in samples if one.labels.get("model") in counted] for samples in scrapes
        ]

    def grown(self, name: str) -> float:
        """By how much a counter grew, over all instances; a restart makes it 0."""
        if len(self.scrapes) < 2:
            return 0.0
        return max(0.0, _total(self.scrapes[-1], name) - _total(self.scrapes[0], name))

    def mean(self, histogram: str) -> float | None:
        """The mean of what a histogram saw in that time."""
        count = self.grown(f"{histogram}_count")
        return self.grown(f"{histogram}_sum") / count if count else None

    def gauges(self) -> dict[str, list[float]]:
        """Our own gauges in every scrape, over all instances, by their short names."""
        samples = [one for scrape in self.scrapes for one in scrape if one.kind == "gauge"]
        names = sorted({one.name for one in samples if one.name.startswith(_OURS)})
        return {
            name.removeprefix(_OURS): [_total(scrape, name) for scrape in self.scrapes]
            for name in names
        }


def _total(samples: Iterable[Sample], name: str) -> float:
    return sum(one.value for one in samples if one.name == name)


def server_figures(seen: Difference, latency_ms: float | None) -> dict[str, float]:
    """The measurement's ``server`` figures; ``latency_ms`` is the mean as clients saw it.

    A model of ours that answers later than it takes requests (the in-flight engine) keeps its own
    times: Triton's end when it has taken the request.
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
    figures |= _gauge_figures(seen.gauges())
    for name in ("refused", "prompt_tokens", "generated_tokens"):
        figures[f"{name}_counted"] = seen.grown(f"{_OURS}{name}_total")
    return {name: round(value, 6) for name, value in figures.items()}


def _gauge_figures(gauges: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Means and peaks."""
    wholes = {f"kv_{kind}" for kind in _SHARES}
    figures: dict[str, float] = {}
    for name, values in gauges.items():
        whole = name.removesuffix("_used")
        if whole != name and whole in wholes:
            of = gauges.get(whole, ())
            shares = [used / all_ for used, all_ in zip(values, of, strict=False) if all_]
            figures |= mean_and_max(_SHARES[whole.removeprefix("kv_")], shares)
        elif name not in wholes:
            figures |= mean_and_max(name, values)
    return figures


def mean_and_max(name: str, values: Sequence[float]) -> dict[str, float]:
    """Empty where there are no values."""
    if not values:
        return {}
    return {name: sum(values) / len(values), f"{name}_max": max(values)}


def gpu_figures(scrapes: Sequence[Sequence[Sample]]) -> dict[str, float]:
    """Triton's own view of the GPUs, means over all scrapes and GPUs; memory and power are sums."""
    figures: dict[str, float] = {}
    for metric, (name, scale) in _BY_GPU.items():
        found = [[s.value for s in samples if s.name == metric] for samples in scrapes]
        sums = [(sum(each) * scale, len(each)) for each in found if each]
        values = [total / count if name == "gpu_share" else total for total, count in sums]
        figures |= mean_and_max(name, values)
    return figures
