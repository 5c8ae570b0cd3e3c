"""The counting task has no options; its answers count as deterministic for tests of the cache."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    DETERMINISTIC = True
