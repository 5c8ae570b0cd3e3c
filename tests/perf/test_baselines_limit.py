"""The share of what a machine allows."""

from __future__ import annotations

import pytest

from perf.baselines.limit import lengths_of_load, share_of_limit
from perf.baselines.plan import Step
from perf.baselines.targets import Variant
from perf.roofline.step import machine_of

MACHINE = machine_of(
    {"memory_gb_per_s": 20.0, "float32_gflop_per_s": 250.0, "bfloat16_gflop_per_s": 500.0},
    num_threads=2,
)


def test_a_long_answers_tokens_look_at_most() -> None:
    assert lengths_of_load().context == pytest.approx(80, abs=0.1)


def test_one_sequence_is_bound_by_reading_the_weights_and_many_by_arithmetic() -> None:
    alone, many = Step(0, 1, Variant("ours", "float32")), Step(0, 256, Variant("ours", "float32"))
    # 34 M parameters of two bytes at 20 GB/s, and a little for keys and values
    assert 100 / share_of_limit(MACHINE, alone, 100) == pytest.approx(290, rel=0.15)
    fewer = Step(0, 256, Variant("ours", "bfloat16"))
    assert share_of_limit(MACHINE, many, 1000) == pytest.approx(
        2 * share_of_limit(MACHINE, fewer, 1000), rel=0.01
    )
