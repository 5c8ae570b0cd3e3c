"""The two ceilings of a machine, as numbers. Measures nothing and needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Machine:
    """Bytes/s read from memory and FLOP/s of matrix products, with ``num_threads`` threads."""

    memory_bytes_per_s: float
    float32_flop_per_s: float
    bfloat16_flop_per_s: float
    num_threads: int

    def flop_per_s(self, dtype: str) -> float:
        """The rate in ``float32`` or ``bfloat16``; float16 is computed as float32 on processors."""
        return self.bfloat16_flop_per_s if dtype == "bfloat16" else self.float32_flop_per_s

    def as_figures(self) -> dict[str, float]:
        """For ``Run.roofline``."""
        return {
            "memory_gb_per_s": round(self.memory_bytes_per_s / 1e9, 3),
            "float32_gflop_per_s": round(self.float32_flop_per_s / 1e9, 3),
            "bfloat16_gflop_per_s": round(self.bfloat16_flop_per_s / 1e9, 3),
        }


def machine_of(figures: Mapping[str, float], num_threads: int) -> Machine:
    """The machine that a run's ``roofline`` tells of."""
    return Machine(
        memory_bytes_per_s=figures["memory_gb_per_s"] * 1e9,
        float32_flop_per_s=figures["float32_gflop_per_s"] * 1e9,
        bfloat16_flop_per_s=figures["bfloat16_gflop_per_s"] * 1e9,
        num_threads=num_threads,
    )
