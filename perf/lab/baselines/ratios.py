"""How many times another target's throughput ours is, within a round, and what is asked of that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from perf.lab.baselines import targets
from perf.lab.baselines.plan import is_stream, variant_of
from perf.lab.baselines.targets import BFLOAT16, DTYPES, FLOAT16, FLOAT32, TARGETS, Variant
from perf.report.schema import Measurement

ASKED: Mapping[tuple[str, Variant], Mapping[int, float]] = {
    (FLOAT32, Variant(targets.VLLM, FLOAT32)): {1: 1.1, 8: 1.1, 32: 1.1, 64: 1.0, 256: 1.0},
    (BFLOAT16, Variant(targets.VLLM, BFLOAT16)): dict.fromkeys((1, 8, 32, 64, 256), 0.9),
    (FLOAT32, Variant(targets.TUTORIAL, FLOAT16)): {1: 2.5, 8: 6.0, 32: 9.0, 64: 9.0},
    (FLOAT32, Variant(targets.IN_PROCESS, FLOAT32)): dict.fromkeys((1, 8, 32, 64), 0.95),
}
"""Ours in a number format against another -> clients -> at least so many times its tokens/s."""

BUSY_CORES = 0.3


@dataclass(frozen=True)
class Ratio:
    """Ours over another's useful tokens/s, of one number of clients, in each round."""

    values: Sequence[float]
    asked: float | None  # of the median
    is_doubtful: bool = False  # whether the machine did something else in one of the levels

    @property
    def is_missed(self) -> bool:
        """Whether less than what is asked was measured."""
        return self.asked is not None and round(median(self.values), 2) < self.asked


def pairs(measurements: Sequence[Measurement]) -> list[tuple[Variant, Variant]]:
    """Ours and each other one, in the same number format where the other has it."""
    measured = {variant_of(each.load) for each in measurements}
    found = []
    for dtype in DTYPES:
        ours = Variant(targets.OURS, dtype)
        for target in TARGETS:
            only = dtype if dtype in target.dtypes else target.dtypes[0]
            other = Variant(target.name, only)
            if other != ours and {ours, other} <= measured:
                found.append((ours, other))
    return found


def ratio(
    measurements: Sequence[Measurement], ours: Variant, other: Variant, clients: int
) -> Ratio | None:
    """Over the rounds in which both were measured; None where there is none."""
    levels = {
        (variant_of(each.load), each.repeat): each
        for each in measurements
        if each.load.concurrency == clients and not is_stream(each.load)
    }
    both = [
        (level, levels[other, number])
        for (variant, number), level in levels.items()
        if variant == ours and (other, number) in levels
    ]
    rates = [[level.output_tokens_per_s or 0.0 for level in pair] for pair in both]
    values = [one / another for one, another in rates if one and another]
    if not values:
        return None
    asked = ASKED.get((ours.dtype, other), {}).get(clients)
    return Ratio(values, asked, any(is_disturbed(level) for pair in both for level in pair))


def is_disturbed(measurement: Measurement) -> bool:
    """Whether other processes took a good part of the cores meanwhile."""
    return measurement.machine.get("other_cpu_cores", 0.0) > BUSY_CORES
