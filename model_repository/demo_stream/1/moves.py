"""Copies between slots of the cache: what a scheduler decides and a cache does."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Move:
    """Copy the first ``num_tokens`` of slot ``source`` to slot ``target``."""

    source: int
    target: int
    num_tokens: int
