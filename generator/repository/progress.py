"""A bar on the terminal while something takes long; silent anywhere else."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TypeVar

Item = TypeVar("Item")

FIRST_AFTER_S = 0.5


def track(items: Sequence[Item], doing: str) -> Iterable[Item]:
    """The items, and on a terminal's stderr how many of them are done."""
    if not sys.stderr.isatty():
        return items
    from tqdm import tqdm  # type: ignore[import-untyped]

    bar: Iterable[Item] = tqdm(items, desc=doing, leave=False, delay=FIRST_AFTER_S)
    return bar
