"""What is worse than linear is told from noise, and from a constant that hides it at first."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from perf.growth.fit import growth

NS = tuple(2**i for i in range(11))


def curve(
    of: Callable[[int], float], noise: float = 0.0, repeats: int = 3
) -> dict[int, list[float]]:
    draw = random.Random(0)
    return {n: [of(n) * (1 + draw.uniform(-noise, noise)) for _ in range(repeats)] for n in NS}


@pytest.mark.parametrize(
    "of, verdict",
    [
        (lambda n: 3.0, "flat"),
        (lambda n: 3.0 / n, "flat"),
        (lambda n: n**0.5, "less than linear"),
        (lambda n: 0.1 * n, "linear"),
        (lambda n: 5 + 0.1 * n, "linear"),
        (lambda n: 0.1 * n**1.3, "worse than linear"),
        (lambda n: 100 + 0.01 * n**2, "worse than linear"),
        (lambda n: n if n < 200 else n**2 / 200, "worse than linear"),
    ],
)
def test_a_curve_is_judged_where_it_is_steepest(of: Callable[[int], float], verdict: str) -> None:
    found = growth(curve(of))
    assert found is not None
    assert found.verdict == verdict
    assert found.is_worse == (verdict == "worse than linear")


def test_noise_is_not_taken_for_growth() -> None:
    found = growth(curve(lambda n: float(n), noise=0.3))
    assert found is not None
    assert not found.is_worse


def test_the_exponent_and_its_place_are_told() -> None:
    found = growth({1: [10.0], 2: [10.0], 4: [10.0], 8: [20.0], 16: [40.0]})
    assert found is not None
    assert found.text() == "grows like n^1.00 (± 0.00) from 4 to 16: linear"
    assert found.per_unit == pytest.approx(2.5)


def test_a_steep_end_that_is_noise_is_told_as_such() -> None:
    found = growth({1: [1.0, 9.0], 2: [8.0, 2.0], 4: [5.0, 80.0]})
    assert found is not None
    assert found.verdict == "not worse than linear beyond noise"


def test_two_single_points_prove_nothing() -> None:
    found = growth({1: [1.0], 2: [4.0]})
    assert found is not None
    assert found.text() == "grows like n^2.00 from 1 to 2: not to be told from two single points"


def test_one_point_has_no_growth() -> None:
    assert growth({4: [1.0, 2.0]}) is None
    assert growth({4: [1.0], 8: [0.0]}) is None
