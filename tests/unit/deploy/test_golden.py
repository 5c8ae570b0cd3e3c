"""Whole deployments, byte for byte. Regenerate with ``python -m tests.unit.deploy.regenerate``."""

from __future__ import annotations

import pytest

from tests.unit.deploy.regenerate import CASES, golden
from tests.unit.deploy.workspace import GOLDEN


@pytest.mark.parametrize("case", CASES)
def test_the_files_are_the_golden_ones(case: str) -> None:
    assert golden(case) == (GOLDEN / f"{case}.txt").read_text(encoding="utf-8")
