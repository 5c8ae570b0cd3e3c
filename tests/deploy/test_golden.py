"""Whole deployments, byte for byte. Regenerate with ``python -m tests.deploy.regenerate``."""

from __future__ import annotations

import pytest

from tests.deploy.regenerate import CASES, rendered
from tests.deploy.workspace import GOLDEN
from tests.support.text_sections import read_tree


@pytest.mark.parametrize("case", CASES)
def test_the_files_are_the_golden_ones(case: str) -> None:
    assert rendered(case) == read_tree(GOLDEN / f"{case}.txt")
