"""The curves of a run: of each axis, target and figure the values by point, and how they grow."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from perf.growth.axes.axis import Axis, Chart, place_of
from perf.growth.axes.named import AXES
from perf.growth.report.explanations import EXPLANATIONS, UNEXPLAINED
from perf.growth.report.figures import FIGURES, Figure
from perf.growth.report.fit import Growth, growth
from perf.report.schema import Measurement


@dataclass(frozen=True)
class Curve:
    """One line of a chart; ``values`` are those of each repeat, by point, ascending."""

    axis: Axis
    target: str
    name: str
    values: Mapping[int, Sequence[float]]

    @property
    def figure(self) -> Figure:
        """Its words and unit."""
        return FIGURES[self.name]

    @property
    def growth(self) -> Growth | None:
        """How it grows; None of a single point."""
        return growth(self.values)

    @property
    def is_worse(self) -> bool:
        """Whether it is worse than linear."""
        return self.growth is not None and self.growth.is_worse

    @property
    def explanation(self) -> str:
        """Why it is worse than linear; empty where it isn't."""
        if not self.is_worse:
            return ""
        return EXPLANATIONS.get((self.axis.name, self.target, self.name), UNEXPLAINED)

    def middle(self, n: int) -> float | None:
        """The median of the repeats at a point."""
        return statistics.median(self.values[n]) if n in self.values else None

    def text(self, n: int) -> str:
        """A table's cell."""
        middle = self.middle(n)
        return "" if middle is None else self.figure.text(middle)

    def verdict(self) -> str:
        """How it grows, in a sentence; of something that grows, what one more costs."""
        found = self.growth
        if found is None:
            return "only one point" if len(self.values) < 2 else "too little to measure"
        if found.verdict == "flat":
            return found.text()
        more = f"{self.figure.text(found.per_unit)} for each of the {self.axis.unit} there"
        return f"{found.text()}; {more}"


@dataclass(frozen=True)
class Drawn:
    """A chart with its curves."""

    chart: Chart
    curves: tuple[Curve, ...]

    @property
    def points(self) -> list[int]:
        """Every point that one of the curves has."""
        return sorted({n for curve in self.curves for n in curve.values})

    def explanation(self, curve: Curve) -> str:
        """Why it is worse than linear, told once where others of the chart are for the same."""
        before = self.curves[: self.curves.index(curve)]
        told = {each.explanation for each in before}
        return "As above." if curve.is_worse and curve.explanation in told else curve.explanation

    def label(self, curve: Curve) -> str:
        """What tells a curve from the others of its chart."""
        parts = [curve.target] if len({each.target for each in self.curves}) > 1 else []
        parts += [curve.figure.words] if len(self.chart.figures) > 1 or not parts else []
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
    found = {
        axis: [each for each in measurements if place_of(each)[0] == name]
        for name, axis in AXES.items()
    }
    return [_section(axis, its) for axis, its in found.items() if its]


def _section(axis: Axis, measurements: Sequence[Measurement]) -> Section:
    drawn = (Drawn(chart, tuple(_curves(axis, chart, measurements))) for chart in axis.charts)
    errors = [each.first_error for each in measurements if each.first_error]
    return Section(
        axis,
        tuple(one for one in drawn if one.curves),
        sum(each.num_errors for each in measurements),
        errors[0] if errors else None,
    )


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
