"""The options of a task that streams, and exists only in tests."""

from __future__ import annotations

from dataclasses import dataclass, field

STREAMS = True
ADAPTERS = True
VLLM_BACKEND = True
QUANTIZES = True


@dataclass(frozen=True)
class Options:
    limit: int = field(default=8, metadata={"help": "a limit", "unit": "tokens", "min": 1})
