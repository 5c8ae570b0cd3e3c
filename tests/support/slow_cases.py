"""Cases of a parametrized test of which a few are run by ``make test`` too."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def slow_but(quick: Collection[Any], cases: Iterable[Any]) -> list[Any]:
    """The cases, for ``parametrize``; those that are not ``quick`` are slow."""
    return [
        pytest.param(*_values(case), marks=() if case in quick else pytest.mark.slow)
        for case in cases
    ]


def _values(case: Any) -> tuple[Any, ...]:
    return case if isinstance(case, tuple) else (case,)
