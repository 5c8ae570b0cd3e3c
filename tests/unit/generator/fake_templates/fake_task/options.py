"""The options of a task that exists only in tests: one field of every kind."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class Options:
    OUTPUT = "sequences"

    engine: Literal["fast", "slow"] = field(default="fast", metadata={"help": "which engine"})
    limit: int | None = field(
        default=None, metadata={"help": "a limit", "unit": "tokens", "min": 1, "max": 1024}
    )
    rate: float = field(default=0.5, metadata={"help": "a rate", "exclusive_min": 0})
    flag: bool = field(default=False, metadata={"help": "a flag"})
    label: str = field(default="x", metadata={"help": "a label"})

    def problems(self) -> list[tuple[str, str]]:
        if self.engine == "slow" and self.limit is not None:
            return [("limit", "the slow engine takes no limit")]
        return []
