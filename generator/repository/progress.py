"""A line on the terminal that counts up while something takes long; silent anywhere else."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from typing import TypeVar

Item = TypeVar("Item")

FIRST_AFTER_S = 0.5
EVERY_S = 0.1


def track(items: Sequence[Item], doing: str) -> Iterator[Item]:
    """The items, and on a terminal's stderr how many of them are done."""
    shown = False
    due = time.monotonic() + FIRST_AFTER_S
    try:
        for done, item in enumerate(items):
            if time.monotonic() >= due and sys.stderr.isatty():
                print(f"\r{doing} {bar(done, len(items))}", end="", file=sys.stderr, flush=True)
                shown, due = True, time.monotonic() + EVERY_S
            yield item
    finally:
        if shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def bar(done: int, total: int, width: int = 30) -> str:
    """``[####......] 412/1000``."""
    filled = width * done // total
    return f"[{'#' * filled}{'.' * (width - filled)}] {done}/{total}"
