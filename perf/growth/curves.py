"""The curves of a run: of each axis, target and figure the values by point, and how they grow."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from perf.growth.axes.axis import Axis, Chart, place_of
from perf.growth.axes.named import AXES
from perf.growth.fit import Growth, growth
from perf.report.schema import Measurement

_JUST_BELOW = 0.9995  # what is shown as 1,000 ms is 1 s
_SCALES: dict[str, tuple[tuple[float, float, str], ...]] = {
    "s": ((1.0, 1.0, "s"), (1e-3, 1e3, "ms"), (0.0, 1e6, "µs")),
    "MiB": ((1024.0, 1 / 1024, "GiB"), (1.0, 1.0, "MiB"), (0.0, 1024.0, "KiB")),
    "cores": ((0.0, 1.0, "cores"),),
}
_FIGURES = {  # words and unit
    "wall_s": ("time", "s"),
    "cpu_s": ("processor time", "s"),
    "peak_memory_mib": ("peak memory", "MiB"),
    "memory_mib": ("memory", "MiB"),
    "server_cpu_s": ("the server's processor time", "s"),
    "latency_p50_s": ("latency p50", "s"),
    "latency_p99_s": ("latency p99", "s"),
    "s_per_request": ("time for each request", "s"),
    "server_cpu_s_per_request": ("the server's processor time for each request", "s"),
    "prefill_s": ("time until the first token", "s"),
    "prefill_cpu_s": ("processor time until the first token", "s"),
    "decode_s_per_token": ("time for each further token", "s"),
    "startup_s": ("time until all are ready", "s"),
    "idle_cores": ("busy without requests", "cores"),
}
_PREFILL = """\
Attention: each token of a prompt looks at all before it, so its share grows with the square of \
the length, and everything else with the length. Of the 42 M model's shape in chunks of 512 \
tokens, as the engine computes them, on one AVX-512 core attention takes 0.06 of 0.36 s of \
processor time at 512 tokens (18 %), 0.19 of 0.81 s at 1,024 (23 %) and 0.66 of 1.91 s at 2,048 \
(35 %): together like n^1.19 from 512 to 2,048; the server there showed n^1.16 to n^1.19. It is \
the model's own arithmetic."""
_QUEUE = """\
The line of those who wait: while every processor is busy, n clients wait n times as long as one \
request takes, and those who come beyond the places in a step wait for a place first. Time for \
each request tells what a request costs."""
EXPLANATIONS = {
    ("prompts", "prefill_s"): _PREFILL,
    ("prompts", "prefill_cpu_s"): _PREFILL,
    ("clients", "latency_p50_s"): _QUEUE,
    ("clients", "latency_p99_s"): _QUEUE,
}
"""Why a cost grows worse than linearly, with the evidence, by axis and figure."""
UNEXPLAINED = (
    "Not explained yet: profile it, make it better, or say in perf/growth/curves.py why not."
)


@dataclass(frozen=True)
class Curve:
    """One line of a chart; ``values`` are those of each repeat, by point, ascending."""

    axis: Axis
    target: str
    name: str
    values: Mapping[int, Sequence[float]]

    @property
    def words(self) -> str:
        """What the figure is called."""
        return _FIGURES[self.name][0]

    @property
    def growth(self) -> Growth | None:
        """How it grows; None of a single point."""
        return growth(self.values)

    @property
    def is_worse(self) -> bool:
        """Whether it is worse than linear."""
        return self.growth is not None and self.growth.is_worse

    def middle(self, n: int) -> float:
        """The median of the repeats at a point."""
        return statistics.median(self.values[n])

    def text(self, value: float, *, is_round: bool = False) -> str:
        """In a unit that fits, with three digits, or without those that are 0."""
        scales = _SCALES[_FIGURES[self.name][1]]
        found = (each for each in scales if abs(value) >= each[0] * _JUST_BELOW)
        _, scale, unit = next(found, scales[-1])
        scaled = value * scale
        digits = 0 if abs(scaled) >= 99.95 else 1 if abs(scaled) >= 9.995 else 2
        return f"{float(f'{scaled:.3g}'):,g} {unit}" if is_round else f"{scaled:,.{digits}f} {unit}"

    def verdict(self) -> str:
        """How it grows, in a sentence; of something that grows, what one more costs."""
        found = self.growth
        if found is None:
            return "only one point" if len(self.values) < 2 else "too little to measure"
        if found.verdict == "flat":
            return found.text()
        return f"{found.text()}; {self.text(found.per_unit)} for each of the {self.axis.unit} there"


@dataclass(frozen=True)
class Drawn:
    """A chart with its curves."""

    chart: Chart
    curves: tuple[Curve, ...]

    @property
    def rows(self) -> list[list[str]]:
        """Of a table: each point, and what each curve has there."""
        points = sorted({n for curve in self.curves for n in curve.values})
        return [
            [
                f"{n:,}",
                *(each.text(each.middle(n)) if n in each.values else "" for each in self.curves),
            ]
            for n in points
        ]

    def verdicts(self) -> Iterator[tuple[Curve, str, str]]:
        """Of each curve what it is called and why it is worse than linear, told once where others
        are for the same; empty where it isn't.
        """
        told = set[str]()
        for curve in self.curves:
            why = EXPLANATIONS.get((curve.axis.name, curve.name), UNEXPLAINED) * curve.is_worse
            yield curve, self.label(curve), "As above." if why and why in told else why
            told.add(why)

    def label(self, curve: Curve) -> str:
        """What tells a curve from the others of its chart."""
        parts = [curve.target] if len({each.target for each in self.curves}) > 1 else []
        parts += [curve.words] if len(self.chart.figures) > 1 or not parts else []
        return ", ".join(parts)


@dataclass(frozen=True)
class Section:
    """An axis of a run."""

    axis: Axis
    charts: tuple[Drawn, ...]
    num_errors: int
    first_error: str | None


def sections(measurements: Sequence[Measurement]) -> list[Section]:
    """The axes that were measured, in AXES' order."""
    found = []
    for name, axis in AXES.items():
        if its := [each for each in measurements if place_of(each)[0] == name]:
            drawn = (Drawn(chart, tuple(_curves(axis, chart, its))) for chart in axis.charts)
            errors = [each.first_error for each in its if each.first_error]
            charts = tuple(each for each in drawn if each.curves)
            num_errors = sum(each.num_errors for each in its)
            found.append(Section(axis, charts, num_errors, errors[0] if errors else None))
    return found


def _curves(axis: Axis, chart: Chart, measurements: Sequence[Measurement]) -> Iterator[Curve]:
    for target in chart.targets or axis.targets:
        for name in chart.figures:
            found: dict[int, list[float]] = {}
            for each in measurements:
                _, of, value = place_of(each)
                if of == target and name in each.machine:
                    found.setdefault(value, []).append(each.machine[name])
            if found:
                yield Curve(axis, target, name, dict(sorted(found.items())))
