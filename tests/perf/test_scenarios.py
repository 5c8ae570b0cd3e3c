"""Scenarios serve what they ask for, and their tables say what was measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from generator.repository.plan import make_plan
from perf.load.measure import Record
from perf.scenarios import comparisons, disturbances
from perf.scenarios.comparisons import COMPARISONS, Measured
from perf.scenarios.disturbances import DISTURBANCES, Noticed


@pytest.mark.parametrize("name", COMPARISONS)
def test_every_way_of_a_comparison_has_its_model(name: str, tmp_path: Path) -> None:
    comparison = COMPARISONS[name]
    (tmp_path / "model").mkdir()
    config = tmp_path / "models.yaml"
    config.write_text(comparison.models_yaml())
    served = {model.name for model in make_plan(config, tmp_path / "repository").models}
    assert {way.model for way in comparison.ways} | set(comparison.entries) <= served


@pytest.mark.parametrize("name", DISTURBANCES)
def test_every_caller_and_whoever_is_spared_has_a_model(name: str) -> None:
    disturbance = DISTURBANCES[name]
    asked = {callers.model for callers in disturbance.callers}
    assert {model for act in disturbance.acts for model in act.spares} <= asked
    text = disturbance.models_yaml.format(model="m", max_queue_size=1)
    assert all(f"name: {model.removesuffix('_stream')}" in text for model in asked)


def measured(number: int, way: str, tokens_per_s: float, problem: str | None = None) -> Measured:
    wrong = 1 if problem else 0
    return Measured(number, 1, way, tokens_per_s, 1.0, 2.0, 0.01, 0.002, wrong, problem)


def test_a_ratio_is_of_two_levels_of_one_round() -> None:
    comparison = COMPARISONS["shared-prefixes"]
    first, second = (way.label for way in comparison.ways)
    found = [measured(0, first, 10.0), measured(0, second, 20.0)]
    found += [measured(1, second, 60.0), measured(1, first, 20.0)]
    found += [
        Measured(each.round, 8, each.way, 1.0, 1.0, 1.0, None, None, 0, None) for each in found
    ]
    (row,) = (
        line
        for line in comparisons.lines_of(comparison, found)
        if line.startswith(f"| 1 | {second}")
    )
    assert "| 2.50 (2.00 to 3.00) |" in row
    assert comparisons.problems_of([measured(0, first, 1.0, "HTTP 500")]) == [f"{first}: HTTP 500"]


def noticed(*, spared: bool) -> Noticed:
    return Noticed("kill", [0.1], "4 of demo", [3.0], 10, 2, "gone", 0.1, 0.2, spared)


def test_only_those_who_are_spared_may_lose_nothing() -> None:
    assert disturbances.problems_of([noticed(spared=False)]) == []
    assert disturbances.problems_of([noticed(spared=True)]) == [
        "4 of demo: 2 lost or wrong, the first: gone"
    ]
    assert "| 4 of demo | 1 | 3.0 | 10 | 2 |" in disturbances.lines_of([noticed(spared=True)])[-1]


def test_what_is_waited_for_is_a_good_answer_to_a_later_request() -> None:
    callers = DISTURBANCES["reload"].callers[0]
    records = [Record(0, 1.0, 9.0, 0), Record(1, 6.0, 7.0, 0, problem="no"), Record(2, 6.0, 8.0, 0)]
    watched = disturbances.Watched(callers, None, records)  # type: ignore[arg-type]
    assert watched.answered_after(5.0) == 8.0
