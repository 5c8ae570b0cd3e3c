"""Scenarios serve what they ask for, and their tables say what was measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from generator.repository.plan import make_plan
from perf.scenarios import comparisons
from perf.scenarios.comparisons import COMPARISONS, Measured


@pytest.mark.parametrize("name", COMPARISONS)
def test_every_way_of_a_comparison_has_its_model(name: str, tmp_path: Path) -> None:
    comparison = COMPARISONS[name]
    (tmp_path / "model").mkdir()
    config = tmp_path / "models.yaml"
    config.write_text(comparison.models_yaml())
    served = {model.name for model in make_plan(config, tmp_path / "repository").models}
    assert {way.model for way in comparison.ways} | set(comparison.entries) <= served


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
