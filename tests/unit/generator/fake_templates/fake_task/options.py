"""The options of a task that exists only in tests: one field of every kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hf_triton.runtime.option import option


@dataclass(frozen=True)
class Options:
    OUTPUT = "sequences"

    engine: Literal["fast", "slow"] = option("fast", "which engine")
    limit: int | None = option(None, "a limit", unit="tokens", least=1, most=1024)
    rate: float = option(0.5, "a rate", above=0)
    flag: bool = option(False, "a flag")
    label: str = option("x", "a label")

    def problems(self) -> list[tuple[str, str]]:
        if self.engine == "slow" and self.limit is not None:
            return [("limit", "the slow engine takes no limit")]
        return []
