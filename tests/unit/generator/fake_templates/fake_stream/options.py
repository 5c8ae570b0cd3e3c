"""The options of a task that streams, and exists only in tests."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Options:
    STREAMS = ADAPTERS = QUANTIZES = True

    limit: int = field(default=8, metadata={"help": "a limit", "unit": "tokens", "min": 1})
