"""Which plots a report has, and how each is to be read. Draws nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from perf.report.metrics import (
    BETWEEN_TOKENS,
    FIRST_TOKEN,
    LATENCY,
    ROOFLINE,
    TOKENS,
    Metric,
    listed,
    throughput_of,
)
from perf.report.plots.panels import Panel
from perf.report.schema import Measurement

_TRADE_OFF = (
    "Up and to the left is better. The number at a point is its load; where a line turns "
    "right without rising, more load only waits."
)
_QUEUE = (
    "Of the time that a request spends in the server. Much: more instances or larger "
    "batches may help; little: computing is the limit."
)
_OCCUPANCY = "Rows computed together in the mean: how much of batching's gain is had."
_ROOFLINE = "Of the tokens/s that the machine's memory and cores allow."
_GPU = "Of all cores, and of the time that the GPU works."


@dataclass(frozen=True)
class Stroke:
    """One figure in a plot: solid, dashed, dotted or dash-dotted."""

    metric: Metric
    words: str = ""
    dash: str = "-"


@dataclass(frozen=True)
class Chart:
    """One kind of plot; ``against`` is the figure on the x axis, else the load is."""

    name: str
    title: str
    reading: str
    unit: str
    strokes: tuple[Stroke, ...]
    against: Metric | None = None
    is_share: bool = False  # the axis goes from 0 to 100 %
    may_be_log: bool = False

    @property
    def figures(self) -> list[Metric]:
        """All that a point must have one of to be drawn."""
        return [stroke.metric for stroke in self.strokes]


def charts(measurements: Sequence[Measurement], panels: Sequence[Panel]) -> list[Chart]:
    """Those for which there is something to draw; of points that form no line, how they lie to
    each other.
    """
    alone = all(len(panel.lines) == 1 for panel in panels)
    found = [chart for chart in _all(measurements, alone) if _has_figures(chart, measurements)]
    lines = [line for panel in panels for line in (*panel.lines, *panel.others)]
    is_scattered = all(len(line.points) == 1 for line in lines)
    return [chart for chart in found if chart.against] if is_scattered else found


def _all(measurements: Sequence[Measurement], alone: bool) -> list[Chart]:
    rate = throughput_of(measurements)
    has_gpu = any("gpu_share" in each.machine for each in measurements)
    return [
        _chart("trade-off", "Throughput against latency", _TRADE_OFF, rate, against=LATENCY["p99"]),
        _chart("throughput", "Throughput by load", "Higher is better.", rate),
        _times("latency", "Latency", LATENCY, "From sending a request to its answer", alone),
        _times(
            "ttft", "Time to first token", FIRST_TOKEN, "From sending to the first chunk", alone
        ),
        _times("itl", "Time between tokens", BETWEEN_TOKENS, "From one chunk to the next", alone),
        _chart("tokens", "Output tokens", "All callers together; higher is better.", TOKENS),
        _chart(
            "occupancy",
            "Batch occupancy",
            _OCCUPANCY,
            listed("server", "batch_occupancy"),
            "rows computed together",
        ),
        _chart(
            "queue",
            "Time in the queue",
            _QUEUE,
            listed("server", "queue_share"),
            "share of the server's time (%)",
            is_share=True,
        ),
        _use(has_gpu),
        _chart(
            "roofline",
            "Share of the roofline",
            _ROOFLINE,
            ROOFLINE,
            "of what the machine allows (%)",
            is_share=True,
        ),
    ]


def _chart(
    name: str,
    title: str,
    reading: str,
    metric: Metric,
    unit: str = "",
    *,
    against: Metric | None = None,
    is_share: bool = False,
) -> Chart:
    """Of one figure."""
    unit = unit or metric.heading
    return Chart(name, title, reading, unit, (Stroke(metric),), against, is_share)


def _times(name: str, title: str, metrics: dict[str, Metric], what: str, alone: bool) -> Chart:
    """Median and p99; where there is but one line, p90 and p95 between them."""
    dashes = {"p50": "-", "p90": "-.", "p95": ":", "p99": "--"}
    shown = dashes if alone else {"p50": "-", "p99": "--"}
    strokes = tuple(Stroke(metrics[which], which, dash) for which, dash in shown.items())
    unit = f"{title.lower()} (ms)"
    return Chart(name, title, f"{what}; lower is better.", unit, strokes, may_be_log=True)


def _use(has_gpu: bool) -> Chart:
    """Of the CPU, and of the GPU where there is one."""
    cpu, gpu = listed("machine", "cpu_share"), listed("machine", "gpu_share")
    if not has_gpu:
        return _chart("use", "CPU use", "Of all cores.", cpu, "CPU (%)", is_share=True)
    strokes = (Stroke(cpu, "CPU"), Stroke(gpu, "GPU", "--"))
    return Chart("use", "CPU and GPU use", _GPU, "in use (%)", strokes, is_share=True)


def _has_figures(chart: Chart, measurements: Iterable[Measurement]) -> bool:
    return any(
        metric.value(each) is not None
        and (chart.against is None or chart.against.value(each) is not None)
        for each in measurements
        for metric in chart.figures
    )
