"""An axis whose costs are computed: linear in time, quadratic in memory. Its session can fail, die,
or be interrupted at a step.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field

from generator.errors import PerfError
from perf.growth.axes.axis import Axis, Chart, Cost, Measure, Place, Step
from perf.growth.axes.named import AXES


@dataclass
class FakeAxis:
    name: str = "clients"
    fails_at: int = 0
    interrupted_at: int = 0
    needs_gib: dict[int, float] = field(default_factory=dict)
    measured: list[tuple[int, int]] = field(default_factory=list)
    opened: int = 0
    closed: int = 0

    @property
    def axis(self) -> Axis:
        return Axis(
            name=self.name,
            title="Fakes",
            unit=AXES[self.name].unit,
            points=(1, 2, 4),
            quick_points=(1, 2),
            highest=100,
            targets=AXES[self.name].targets[:1],
            charts=(Chart("Cost", ("latency_p50_s",)), Chart("Memory", ("peak_memory_mib",))),
            session=self.session,
            note="Computed.",
            repeats=2,
            memory_gib=lambda value: self.needs_gib.get(value, 0.0),
        )

    @contextlib.contextmanager
    def session(self, place: Place) -> Iterator[Measure]:
        self.opened += 1
        assert place.folder.is_dir()
        try:
            yield self.costs
        finally:
            self.closed += 1

    def costs(self, step: Step) -> Iterator[Cost]:
        if step.value == self.fails_at:
            raise PerfError("the server died")
        if step.value == self.interrupted_at:
            raise KeyboardInterrupt
        self.measured.append((step.value, step.repeat))
        figures = {"latency_p50_s": 0.1 * step.value, "peak_memory_mib": 10.0 * step.value**2}
        yield Cost(AXES[self.name].targets[0], figures, 1.0, 10)
