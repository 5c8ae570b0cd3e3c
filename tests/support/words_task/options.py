"""Tells the arms of a test apart; answers count as deterministic for tests of the cache."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Options:
    STREAMS = DETERMINISTIC = True

    answers: str = field(default="", metadata={"help": "what every answer begins with"})
    answer_s: float = field(default=0.0, metadata={"help": "time to answer", "unit": "s"})
